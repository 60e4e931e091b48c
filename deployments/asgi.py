"""The replica's HTTP face: a raw ASGI app that speaks the Open Inference Protocol v2.

No framework stands between the socket and the batcher: a request is parsed once, checked, and
awaited. The app knows neither Ray nor the model; it is given a `Service`.
"""

import asyncio
import logging
import re
import time
from collections.abc import Mapping
from typing import Any, Protocol

import orjson
from starlette.types import Receive, Scope, Send

from deployments.inference_protocol import (
    InferenceRequest,
    Signature,
    Tensors,
    encode_response,
    parse_request,
)
from sojourn.errors import (
    BadRequestError,
    BusyError,
    MethodNotAllowedError,
    ModelError,
    NotFoundError,
    RequestError,
    TooLargeError,
)

logger = logging.getLogger("sojourn.http")

Headers = list[tuple[bytes, bytes]]

_MODEL_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(infer|ready))?")
_HEADER_LENGTH = b"inference-header-content-length"
_JSON = (b"content-type", b"application/json")


class Service(Protocol):
    """What the app serves: one model behind its batcher."""

    model_name: str
    model_version: str
    platform: str
    signature: Signature
    max_body_bytes: int

    @property
    def ready(self) -> bool:
        """Whether the model can answer."""

    def has_room(self) -> bool:
        """Whether one more row can wait; what finds no room is counted as refused."""

    async def infer(self, request: InferenceRequest, arrival_s: float) -> Tensors:
        """Answer a checked request that reached the process at `arrival_s`."""

    def explain(self) -> Mapping[str, Any]:
        """Give the content of `GET /sojourn/policy`."""

    def example_request(self) -> Mapping[str, Any]:
        """Give a valid request of one row, for `GET /sojourn/example`."""


class InferenceApp:
    """An ASGI app for one `Service`."""

    def __init__(self, service: Service, server_version: str) -> None:
        self._service = service
        self._server_version = server_version

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, or the server's lifespan messages."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        arrival_s = time.monotonic()
        try:
            status, body, headers = await self._answer(scope, receive, arrival_s)
        except asyncio.CancelledError:
            # The client left, or the server gives up; in both cases there is nobody to answer.
            return
        except RequestError as error:
            status, body, headers = error.status, orjson.dumps({"error": str(error)}), [_JSON]
            if isinstance(error, BusyError):
                headers.append((b"retry-after", b"1"))
        except Exception:
            logger.exception("an answer could not be made")
            status, headers = 500, [_JSON]
            body = orjson.dumps({"error": "the service failed on this request"})
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(
        self, scope: Scope, receive: Receive, arrival_s: float
    ) -> tuple[int, bytes, Headers]:
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        method = scope["method"]
        found = _MODEL_PATH.fullmatch(path)
        if found is None:
            content = self._server_content(path)
            _check_method(method, "GET")
            return content
        name, version, verb = found.groups()
        self._check_model(name, version)
        if verb == "infer":
            _check_method(method, "POST")
            return await self._infer(scope, receive, arrival_s)
        _check_method(method, "GET")
        return self._ready({"name": name}) if verb == "ready" else _json(self._metadata())

    def _server_content(self, path: str) -> tuple[int, bytes, Headers]:
        if path == "/v2":
            return _json(
                {
                    "name": "sojourn",
                    "version": self._server_version,
                    "extensions": ["binary_tensor_data"],
                }
            )
        if path == "/v2/health/live":
            return _json({"live": True})
        if path == "/v2/health/ready":
            return self._ready({})
        if path == "/sojourn/policy":
            return _json(self._service.explain())
        if path == "/sojourn/example":
            return _json(self._service.example_request())
        model_path = f"/v2/models/{self._service.model_name}"
        raise NotFoundError(f"there is no {path or '/'}: the model answers under {model_path}")

    def _ready(self, content: Mapping[str, Any]) -> tuple[int, bytes, Headers]:
        ready = self._service.ready
        return _json({**content, "ready": ready}, 200 if ready else 503)

    def _check_model(self, name: str, version: str | None) -> None:
        service = self._service
        if name != service.model_name:
            raise NotFoundError(f"there is no model {name!r} here, only {service.model_name!r}")
        if version is not None and version != service.model_version:
            raise NotFoundError(
                f"model {name!r} has no version {version!r}, only {service.model_version!r}"
            )

    def _metadata(self) -> Mapping[str, Any]:
        service = self._service

        def tensors(specs: Any) -> list[Mapping[str, Any]]:
            return [
                {"name": spec.name, "datatype": spec.datatype, "shape": [-1, *spec.shape]}
                for spec in specs
            ]

        return {
            "name": service.model_name,
            "versions": [service.model_version],
            "platform": service.platform,
            "inputs": tensors(service.signature.inputs),
            "outputs": tensors(service.signature.outputs),
        }

    async def _infer(
        self, scope: Scope, receive: Receive, arrival_s: float
    ) -> tuple[int, bytes, Headers]:
        service = self._service
        content_length, header_length = _lengths(scope["headers"])
        body = await _read(receive, content_length, service.max_body_bytes)
        if not service.has_room():
            raise BusyError("this replica is full")
        request = parse_request(body, header_length, service.signature)
        watch = asyncio.create_task(_cancel_on_disconnect(receive, asyncio.current_task()))
        try:
            outputs = await service.infer(request, arrival_s)
        finally:
            watch.cancel()
        try:
            body, length = encode_response(
                service.model_name, service.model_version, request, outputs
            )
        except Exception:
            logger.exception("the model's outputs could not be encoded")
            raise ModelError("the model's outputs could not be encoded") from None
        if length is None:
            return 200, body, [_JSON]
        headers = [
            (b"content-type", b"application/octet-stream"),
            (_HEADER_LENGTH, str(length).encode()),
        ]
        return 200, body, headers


def _json(content: Mapping[str, Any], status: int = 200) -> tuple[int, bytes, Headers]:
    return status, orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), [_JSON]


def _check_method(method: str, allowed: str) -> None:
    if method != allowed and not (method == "HEAD" and allowed == "GET"):
        raise MethodNotAllowedError(f"the method must be {allowed}, not {method}")


def _lengths(headers: Headers) -> tuple[int, int | None]:
    """Content-Length (0 where not given) and the length of the JSON part, where given."""
    content_length, header_length = 0, None
    for name, value in headers:
        if name == b"content-length":
            content_length = int(value)
        elif name == _HEADER_LENGTH:
            try:
                header_length = int(value)
            except ValueError:
                raise BadRequestError(
                    "Inference-Header-Content-Length must be a whole number"
                ) from None
    return content_length, header_length


async def _read(receive: Receive, content_length: int, max_body_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = content_length
    while size <= max_body_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequestError("the client left before its request was whole")
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        size = max(content_length, sum(map(len, chunks)))
    raise TooLargeError(f"the body may have {max_body_bytes} bytes at most")


async def _cancel_on_disconnect(receive: Receive, waiting: asyncio.Task[Any] | None) -> None:
    """Cancel the task `waiting` when the client leaves, so that nothing is computed for nobody."""
    if (await receive())["type"] == "http.disconnect" and waiting is not None:
        waiting.cancel()


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
