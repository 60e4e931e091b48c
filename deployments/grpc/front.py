"""A gRPC server that sends every call on to a service over HTTP.

HAProxy tries another replica if one refuses (RAND). It cannot do so for gRPC, whose status comes
after the answer, so calls become requests of the Open Inference Protocol with binary tensors:
routing, admission, tokens and errors are those of HTTP.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Container, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import grpc
import orjson
from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector
from google.protobuf.json_format import ParseDict

from deployments.access.web_pages import is_loopback
from deployments.errors import BadRequestError, StartError
from deployments.grpc import open_inference_pb2 as messages
from deployments.grpc.translation import grpc_response, http_body
from deployments.http.signature import MAX_TIMEOUT_MS

#: Metadata that becomes header fields of the HTTP request.
FORWARDED = frozenset(
    {"authorization", "traceparent", "tracestate", "x-request-id", "x-request-priority"}
)
#: Header fields of an HTTP error that become trailing metadata.
_TRAILING = ("retry-after", "x-sojourn-reason", "x-request-id")
_HEADER_LENGTH = "Inference-Header-Content-Length"
#: How long calls may take to end once the front is stopped.
STOP_TIMEOUT_S = 30.0
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    502: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class Front:
    """The calls of `GRPCInferenceService`, answered by the service at a URL."""

    def __init__(self, session: ClientSession, url: str, host_field: str | None) -> None:
        self._session = session
        self._url = url
        self._fields = {"Accept-Encoding": "identity"} | (
            {"Host": host_field} if host_field else {}
        )

    async def server_live(self, _request: Any, context: Any) -> Any:
        return messages.ServerLiveResponse(live=await self._is_ok("/v2/health/live", context))

    async def server_ready(self, _request: Any, context: Any) -> Any:
        return messages.ServerReadyResponse(ready=await self._is_ok("/v2/health/ready", context))

    async def model_ready(self, request: Any, context: Any) -> Any:
        path = f"{_model_path(request.name, request.version)}/ready"
        return messages.ModelReadyResponse(ready=await self._is_ok(path, context))

    async def server_metadata(self, _request: Any, context: Any) -> Any:
        return await self._describe("/v2", messages.ServerMetadataResponse(), context)

    async def model_metadata(self, request: Any, context: Any) -> Any:
        path = _model_path(request.name, request.version)
        return await self._describe(path, messages.ModelMetadataResponse(), context)

    async def model_infer(self, request: Any, context: Any) -> Any:
        try:
            body, header_length = http_body(request)
        except BadRequestError as error:
            return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        fields = {_HEADER_LENGTH: str(header_length)}
        left_s = context.time_remaining()
        if left_s is not None:
            timeout_ms = min(max(1.0, 1e3 * left_s), MAX_TIMEOUT_MS)
            fields["X-Request-Timeout-Ms"] = f"{timeout_ms:.0f}"
        path = f"{_model_path(request.model_name, request.model_version)}/infer"
        _, answer, headers = await self._ask("POST", path, context, body, fields)
        return grpc_response(answer, int(headers[_HEADER_LENGTH]))

    async def _describe(self, path: str, message: Any, context: Any) -> Any:
        _, answer, _ = await self._ask("GET", path, context)
        return ParseDict(orjson.loads(answer), message, ignore_unknown_fields=True)

    async def _is_ok(self, path: str, context: Any) -> bool:
        status, *_ = await self._ask("GET", path, context, accepted=(200, 503))
        return status == 200

    async def _ask(
        self,
        method: str,
        path: str,
        context: Any,
        body: bytes | None = None,
        fields: Mapping[str, str] | None = None,
        accepted: Container[int] = (200,),
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Return the status, the body and the header fields of the service's answer.

        The call ends with the status that stands for the HTTP error, and with its message, if the
        service answers with another than the `accepted` ones.
        """
        forwarded = {key: value for key, value in context.invocation_metadata() if key in FORWARDED}
        headers = {**self._fields, **forwarded, **(fields or {})}
        try:
            async with self._session.request(
                method, self._url + path, data=body, headers=headers
            ) as response:
                answer = response.status, await response.read(), response.headers
        except (ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, f"no answer from {self._url}: {reason}"
            )
            raise
        if answer[0] not in accepted:
            await _fail(*answer, context)
        return answer


def _model_path(name: str, version: str) -> str:
    path = f"/v2/models/{quote(name, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


async def _fail(status: int, body: bytes, headers: Mapping[str, str], context: Any) -> None:
    try:
        message = orjson.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        message = f"the service answered with status {status}"
    trailing = tuple((name, headers[name]) for name in _TRAILING if name in headers)
    await context.abort(_CODES.get(status, grpc.StatusCode.UNKNOWN), message, trailing)


async def run_front(
    url: str, host: str, port: int, max_message_bytes: int, ready: Callable[[int], None]
) -> None:
    """Serve gRPC until SIGTERM or SIGINT; call `ready` with the port. See `open_front`."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with open_front(url, host, port, max_message_bytes) as bound:
        ready(bound)
        await stopped.wait()


@asynccontextmanager
async def open_front(url: str, host: str, port: int, max_message_bytes: int) -> AsyncIterator[int]:
    """Serve gRPC on `host` and `port` while the context lasts; yield the port.

    Port 0 takes a free one. At the end, calls have `STOP_TIMEOUT_S` to finish. A service without
    tokens answers this machine alone, by the host that a request names; so a front that others
    reach names its own.

    Raises
    ------
    StartError
        The port is in use, or the address is not one of this machine.
    """
    at_loopback = is_loopback(host)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    connector = TCPConnector(limit=0)
    async with ClientSession(connector=connector, timeout=ClientTimeout(total=None)) as session:
        front = Front(session, url, None if at_loopback else address)
        server = grpc.aio.server(
            options=(
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", -1),
            )
        )
        server.add_generic_rpc_handlers((_handlers(front),))
        try:
            bound = server.add_insecure_port(address)
        except RuntimeError as error:
            raise StartError(f"cannot listen on {address}: is it in use?") from error
        await server.start()
        try:
            yield bound
        finally:
            await server.stop(STOP_TIMEOUT_S)


def _handlers(front: Front) -> Any:
    calls = {
        "ServerLive": front.server_live,
        "ServerReady": front.server_ready,
        "ModelReady": front.model_ready,
        "ServerMetadata": front.server_metadata,
        "ModelMetadata": front.model_metadata,
        "ModelInfer": front.model_infer,
    }
    return grpc.method_handlers_generic_handler(
        "inference.GRPCInferenceService",
        {
            name: grpc.unary_unary_rpc_method_handler(
                call,
                request_deserializer=getattr(messages, f"{name}Request").FromString,
                response_serializer=getattr(messages, f"{name}Response").SerializeToString,
            )
            for name, call in calls.items()
        },
    )
