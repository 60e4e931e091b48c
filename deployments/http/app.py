"""The replica's HTTP interface: an ASGI app for the Open Inference Protocol v2.

The app uses no web framework: it parses each request once and passes it to the batcher. It depends
on neither Ray nor the model, only on a `Service`.
"""

import asyncio
import logging
import re
import reprlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Protocol

import orjson
from starlette.types import Receive, Scope, Send

from deployments.access.control import AccessControl, scope_of
from deployments.batcher.front_meter import FrontMeter
from deployments.batcher.submission import Cancellable, Outcome
from deployments.errors import (
    BusyError,
    ForbiddenError,
    MethodNotAllowedError,
    ModelError,
    NotFoundError,
    RateLimitedError,
    RequestError,
    UnauthorizedError,
)
from deployments.http.disconnects import DisconnectWatch
from deployments.http.inference_protocol import (
    InferenceRequest,
    Signature,
    Tensors,
    encode_response,
    parse_request,
)
from deployments.http.openapi import openapi_document, tensor_metadata
from deployments.http.request import (
    AUTHORIZATION,
    HEADER_LENGTH,
    REQUEST_ID,
    Headers,
    check_single_valued,
    read_body,
    read_header_length,
    read_priority,
    read_timeout_ms,
)
from deployments.observability.request_ids import RequestIds
from deployments.observability.request_info import TRACEPARENT, RequestInfo
from deployments.observability.request_log import RequestLog
from deployments.observability.tracing import RequestTrace, Tracing

logger = logging.getLogger("sojourn.http")

_MODEL_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(infer|ready))?")
_READ_METHODS = ("GET", "HEAD")
_JSON = (b"content-type", b"application/json")
_BINARY = (b"content-type", b"application/octet-stream")
#: Key of a scope: when the request could first have been read, by `time.monotonic`.
ARRIVAL = "sojourn.arrival_s"
#: Why a request was refused before it was parsed.
FULL = "this replica is full; try again later"

#: Status, body and header fields; the length of the body and the request id are added.
Answer = tuple[int, bytes, Headers]

#: Extra header of error responses, by status.
_ERROR_HEADERS = {
    415: (b"accept-encoding", b"gzip, deflate"),
    429: (b"retry-after", b"1"),
    503: (b"retry-after", b"1"),
}


class Service(Protocol):
    """One model behind its batcher, as the app needs it."""

    model_name: str
    model_version: str
    platform: str
    signature: Signature
    max_body_bytes: int
    access: AccessControl
    tracing: Tracing

    @property
    def front_meter(self) -> FrontMeter:
        """What counts the requests, and tells since when they could have been read."""

    @property
    def ready(self) -> bool:
        """Whether the model can answer requests."""

    def has_room(self, body: bytes, arrival_s: float) -> bool:
        """Return whether one more row can be answered in time. If not, count it as refused."""

    def infer_nowait(
        self,
        request: InferenceRequest,
        arrival_s: float,
        on_done: Callable[[Outcome], None],
        trace: RequestTrace | None = None,
    ) -> Cancellable:
        """Run a checked request, and call `on_done` with its outcome unless it is cancelled."""

    async def infer(
        self, request: InferenceRequest, arrival_s: float, trace: RequestTrace | None = None
    ) -> Tensors:
        """Run a checked request. `arrival_s` is when it could first have been read, in seconds."""

    def explain(self) -> Mapping[str, Any]:
        """Return the content of ``GET /sojourn/policy``."""

    def example_request(self) -> Mapping[str, Any]:
        """Return a valid request of one row, for ``GET /sojourn/example``."""


async def _no_autoscaler() -> Mapping[str, Any]:
    return {"newest": None, "decisions": []}


class InferenceApp:
    """ASGI app for one `Service`.

    Parameters
    ----------
    service : Service
    server_version : str
        The version that ``GET /v2`` reports.
    autoscaler : async callable, optional
        Returns the content of ``GET /sojourn/autoscaler``. The default reports no decisions.

    Attributes
    ----------
    infer_path : str
        The path of inference requests, without the application's prefix.
    unusual_fields : frozenset of bytes
        Header fields with which a request has to come to the app itself, in lower case.
    request_ids : RequestIds
        Makes ids for requests that have none.
    """

    unusual_fields: ClassVar[frozenset[bytes]] = frozenset()

    def __init__(
        self,
        service: Service,
        server_version: str,
        autoscaler: Callable[[], Awaitable[Mapping[str, Any]]] = _no_autoscaler,
    ) -> None:
        self.service = service
        self.infer_path = f"/v2/models/{service.model_name}/infer"
        self._autoscaler = autoscaler
        self._server_version = server_version
        self._watch = DisconnectWatch()
        self.request_ids = RequestIds()
        self._request_log = RequestLog(service.model_name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, or the server's lifespan events."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        # Other servers than `InferenceProtocol` do not say when it could have been read.
        arrival_s = scope.get(ARRIVAL) or time.monotonic()
        # This keeps the last of repeated fields; `_infer` rejects those where that matters.
        fields = dict(scope["headers"])
        info = RequestInfo(
            fields.get(REQUEST_ID) or self.request_ids.make(), fields.get(TRACEPARENT)
        )
        try:
            status, body, headers = await self._route(scope, fields, receive, arrival_s, info)
        except asyncio.CancelledError:
            # The client disconnected or the server is shutting down: nobody waits for an answer.
            return
        except Exception as error:
            status, body, headers = self.failure(error, info, arrival_s)
        headers.append((b"content-length", b"%d" % len(body)))
        headers.append((REQUEST_ID, info.request_id))
        if scope["method"] == "HEAD":
            body = b""
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _route(
        self,
        scope: Scope,
        fields: Mapping[bytes, bytes],
        receive: Receive,
        arrival_s: float,
        info: RequestInfo,
    ) -> Answer:
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        method = scope["method"]
        info.token = self.service.access.admit(
            fields.get(AUTHORIZATION), scope_of(path), time.monotonic()
        )
        if path == self.infer_path and method == "POST":
            return await self._infer(scope, fields, receive, arrival_s, info)
        if path == "/sojourn/autoscaler":
            _check_method(method, *_READ_METHODS)
            return _json_answer(await self._autoscaler())
        found = _MODEL_PATH.fullmatch(path)
        if found is None:
            answer = self._server_answer(path, scope.get("root_path", ""))
            _check_method(method, *_READ_METHODS)
            return answer
        name, version, verb = found.groups()
        self._check_model(name, version)
        if verb == "infer":
            _check_method(method, "POST")
            return await self._infer(scope, fields, receive, arrival_s, info)
        _check_method(method, *_READ_METHODS)
        return (
            self._readiness_answer({"name": name})
            if verb == "ready"
            else _json_answer(self._metadata())
        )

    def _server_answer(self, path: str, root_path: str) -> Answer:
        if path == "/v2":
            return _json_answer(
                {
                    "name": "sojourn",
                    "version": self._server_version,
                    "extensions": ["binary_tensor_data"],
                }
            )
        if path == "/v2/health/live":
            return _json_answer({"live": True})
        if path == "/v2/health/ready":
            return self._readiness_answer({})
        if path == "/sojourn/policy":
            return _json_answer(self.service.explain())
        if path == "/sojourn/example":
            return _json_answer(self.service.example_request())
        if path == "/sojourn/openapi.json":
            return _json_answer(self._openapi(root_path))
        model_path = f"/v2/models/{self.service.model_name}"
        raise NotFoundError(f"there is no path {_quote(path)}; the model is at {model_path}")

    def _readiness_answer(self, content: Mapping[str, Any]) -> Answer:
        ready = self.service.ready
        return _json_answer({**content, "ready": ready}, 200 if ready else 503)

    def _check_model(self, name: str, version: str | None) -> None:
        service = self.service
        if name != service.model_name:
            raise NotFoundError(
                f"there is no model {_quote(name)}; this service has {service.model_name!r}"
            )
        if version is not None and version != service.model_version:
            raise NotFoundError(
                f"model {name!r} has no version {_quote(version)}; "
                f"its version is {service.model_version!r}"
            )

    def _metadata(self) -> Mapping[str, Any]:
        service = self.service
        return {
            "name": service.model_name,
            "versions": [service.model_version],
            "platform": service.platform,
            "inputs": tensor_metadata(service.signature.inputs),
            "outputs": tensor_metadata(service.signature.outputs),
        }

    def _openapi(self, root_path: str) -> Mapping[str, Any]:
        service = self.service
        return openapi_document(
            model_name=service.model_name,
            model_version=service.model_version,
            signature=service.signature,
            max_body_bytes=service.max_body_bytes,
            example=service.example_request(),
            server_version=self._server_version,
            root_path=root_path,
        )

    async def _infer(
        self,
        scope: Scope,
        fields: Mapping[bytes, bytes],
        receive: Receive,
        arrival_s: float,
        info: RequestInfo,
    ) -> Answer:
        service = self.service
        if len(fields) < len(scope["headers"]):
            check_single_valued(scope["headers"])
        header_length = read_header_length(fields)
        timeout_ms, priority = read_timeout_ms(fields), read_priority(fields)
        body = await read_body(receive, fields, service.max_body_bytes)
        if not service.has_room(body, arrival_s):
            raise BusyError(FULL)
        request = parse_request(body, header_length, service.signature, timeout_ms, priority)
        if service.tracing.on:
            info.trace = service.tracing.begin(info.traceparent, info.request_id, arrival_s)
        task = asyncio.current_task()
        assert task is not None
        self._watch.add(task, receive)
        status = 500
        try:
            outputs = await service.infer(request, arrival_s, info.trace)
            answer = self.success(request, outputs)
            status = answer[0]
        except RequestError as error:
            status = error.status
            raise
        finally:
            self._watch.remove(task)
            if info.trace is not None:
                service.tracing.end(info.trace, status, request.rows, info.token)
        return answer

    def success(self, request: InferenceRequest, outputs: Tensors) -> Answer:
        """Return the answer with a model's outputs.

        Raises
        ------
        RequestError
            The outputs cannot be encoded.
        """
        service = self.service
        try:
            body, length = encode_response(
                service.model_name, service.model_version, request, outputs
            )
        except RequestError:
            raise
        except Exception:
            logger.exception("failed to encode the model's outputs")
            raise ModelError("the model returned outputs that cannot be encoded") from None
        if length is None:
            return 200, body, [_JSON]
        return 200, body, [_BINARY, (HEADER_LENGTH, b"%d" % length)]

    def failure(
        self, error: Exception, info: RequestInfo | None = None, arrival_s: float = 0.0
    ) -> Answer:
        """Return the answer to a request that failed; only a `RequestError` is explained.

        Parameters
        ----------
        error : Exception
        info : RequestInfo, optional
            The request; if given, its failure is logged.
        arrival_s : float
            When it arrived, by `time.monotonic`.
        """
        if not isinstance(error, RequestError):
            logger.error("internal error while answering a request", exc_info=error)
            error = ModelError("internal error while answering this request")
        if info is not None:
            self.log_failure(error.status, str(error), info, arrival_s)
        headers = [_JSON]
        if isinstance(error, UnauthorizedError | ForbiddenError):
            headers.append((b"www-authenticate", error.challenge.encode()))
        elif isinstance(error, RateLimitedError):
            headers.append((b"retry-after", b"%d" % error.retry_after_s))
        elif error.status in _ERROR_HEADERS:
            headers.append(_ERROR_HEADERS[error.status])
        elif isinstance(error, MethodNotAllowedError):
            headers.append((b"allow", ", ".join(error.allowed).encode()))
        return error.status, orjson.dumps({"error": str(error)}), headers

    def log_failure(self, status: int, error: str, info: RequestInfo, arrival_s: float) -> None:
        """Log a request that was refused or failed; too many lines are left out."""
        self._request_log.failed(
            status,
            error,
            info.request_id,
            arrival_s,
            token=info.token,
            traceparent=info.traceparent,
        )


def _json_answer(content: Mapping[str, Any], status: int = 200) -> Answer:
    return status, orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), [_JSON]


def _check_method(method: str, *allowed: str) -> None:
    if method not in allowed:
        raise MethodNotAllowedError(
            f"the method must be {' or '.join(allowed)}, not {_quote(method)}", allowed
        )


def _quote(text: str) -> str:
    """Quote the client's text for an error message: shortened, and always valid Unicode."""
    return reprlib.repr(text)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
