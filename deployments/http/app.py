"""The replica's HTTP face: a raw ASGI app that speaks the Open Inference Protocol v2.

No framework stands between the socket and the batcher: a request is parsed once, checked, and
awaited. The app knows neither Ray nor the model; it is given a `Service`.
"""

import asyncio
import logging
import re
import reprlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import orjson
from starlette.types import Receive, Scope, Send

from deployments.errors import (
    BusyError,
    MethodNotAllowedError,
    ModelError,
    NotFoundError,
    RequestError,
)
from deployments.http.disconnects import DisconnectWatch
from deployments.http.inference_protocol import (
    InferenceRequest,
    Signature,
    Tensors,
    encode_response,
    parse_request,
)
from deployments.http.openapi import document, tensor_metadata
from deployments.http.request import (
    HEADER_LENGTH,
    REQUEST_ID,
    Headers,
    check_single,
    read_body,
    read_header_length,
    read_priority,
    read_timeout_ms,
)

logger = logging.getLogger("sojourn.http")

_MODEL_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(infer|ready))?")
_READING = ("GET", "HEAD")
_JSON = (b"content-type", b"application/json")
_BINARY = (b"content-type", b"application/octet-stream")
#: What an error of a status tells besides its message.
_ERROR_HEADERS = {
    415: (b"accept-encoding", b"gzip, deflate"),
    429: (b"retry-after", b"1"),
    503: (b"retry-after", b"1"),
}


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


async def _no_autoscaler() -> Mapping[str, Any]:
    return {"newest": None, "decisions": []}


class InferenceApp:
    """An ASGI app for one `Service`.

    Parameters
    ----------
    service : Service
    server_version : str
    autoscaler : callable, optional
        Gives the content of `GET /sojourn/autoscaler`.
    """

    def __init__(
        self,
        service: Service,
        server_version: str,
        autoscaler: Callable[[], Awaitable[Mapping[str, Any]]] = _no_autoscaler,
    ) -> None:
        self._service = service
        self._autoscaler = autoscaler
        self._server_version = server_version
        self._watch = DisconnectWatch()
        self._infer_path = f"/v2/models/{service.model_name}/infer"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, or the server's lifespan messages."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        arrival_s = time.monotonic()
        # Of fields given twice this holds the last; where that matters, it is refused.
        fields = dict(scope["headers"])
        try:
            status, body, headers = await self._answer(scope, fields, receive, arrival_s)
        except asyncio.CancelledError:
            # The client left, or the server gives up; in both cases there is nobody to answer.
            return
        except RequestError as error:
            status, body, headers = error.status, orjson.dumps({"error": str(error)}), [_JSON]
            if status in _ERROR_HEADERS:
                headers.append(_ERROR_HEADERS[status])
            elif isinstance(error, _WrongMethodError):
                headers.append((b"allow", error.allowed.encode()))
        except Exception:
            logger.exception("an answer could not be made")
            status, headers = 500, [_JSON]
            body = orjson.dumps({"error": "the service failed on this request"})
        headers.append((b"content-length", b"%d" % len(body)))
        if REQUEST_ID in fields:
            headers.append((REQUEST_ID, fields[REQUEST_ID]))
        if scope["method"] == "HEAD":
            body = b""
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(
        self, scope: Scope, fields: Mapping[bytes, bytes], receive: Receive, arrival_s: float
    ) -> tuple[int, bytes, Headers]:
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        method = scope["method"]
        if path == self._infer_path and method == "POST":
            return await self._infer(scope, fields, receive, arrival_s)
        if path == "/sojourn/autoscaler":
            _check_method(method, *_READING)
            return _json(await self._autoscaler())
        found = _MODEL_PATH.fullmatch(path)
        if found is None:
            content = self._server_content(path, scope.get("root_path", ""))
            _check_method(method, *_READING)
            return content
        name, version, verb = found.groups()
        self._check_model(name, version)
        if verb == "infer":
            _check_method(method, "POST")
            return await self._infer(scope, fields, receive, arrival_s)
        _check_method(method, *_READING)
        return self._ready({"name": name}) if verb == "ready" else _json(self._metadata())

    def _server_content(self, path: str, root_path: str) -> tuple[int, bytes, Headers]:
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
        if path == "/sojourn/openapi.json":
            return _json(self._document(root_path))
        model_path = f"/v2/models/{self._service.model_name}"
        raise NotFoundError(f"there is no {_shown(path)}: the model answers under {model_path}")

    def _ready(self, content: Mapping[str, Any]) -> tuple[int, bytes, Headers]:
        ready = self._service.ready
        return _json({**content, "ready": ready}, 200 if ready else 503)

    def _check_model(self, name: str, version: str | None) -> None:
        service = self._service
        if name != service.model_name:
            raise NotFoundError(
                f"there is no model {_shown(name)} here, only {service.model_name!r}"
            )
        if version is not None and version != service.model_version:
            raise NotFoundError(
                f"model {name!r} has no version {_shown(version)}, only {service.model_version!r}"
            )

    def _metadata(self) -> Mapping[str, Any]:
        service = self._service
        return {
            "name": service.model_name,
            "versions": [service.model_version],
            "platform": service.platform,
            "inputs": tensor_metadata(service.signature.inputs),
            "outputs": tensor_metadata(service.signature.outputs),
        }

    def _document(self, root_path: str) -> Mapping[str, Any]:
        service = self._service
        return document(
            model_name=service.model_name,
            model_version=service.model_version,
            signature=service.signature,
            max_body_bytes=service.max_body_bytes,
            example=service.example_request(),
            server_version=self._server_version,
            root_path=root_path,
        )

    async def _infer(
        self, scope: Scope, fields: Mapping[bytes, bytes], receive: Receive, arrival_s: float
    ) -> tuple[int, bytes, Headers]:
        service = self._service
        if len(fields) < len(scope["headers"]):
            check_single(scope["headers"])
        header_length = read_header_length(fields)
        timeout_ms, priority = read_timeout_ms(fields), read_priority(fields)
        body = await read_body(receive, fields, service.max_body_bytes)
        if not service.has_room():
            raise BusyError("this replica is full")
        request = parse_request(body, header_length, service.signature, timeout_ms, priority)
        task = asyncio.current_task()
        assert task is not None
        self._watch.add(task, receive)
        try:
            outputs = await service.infer(request, arrival_s)
        finally:
            self._watch.remove(task)
        try:
            body, length = encode_response(
                service.model_name, service.model_version, request, outputs
            )
        except RequestError:
            raise
        except Exception:
            logger.exception("the model's outputs could not be encoded")
            raise ModelError("the model's outputs could not be encoded") from None
        if length is None:
            return 200, body, [_JSON]
        return 200, body, [_BINARY, (HEADER_LENGTH, b"%d" % length)]


class _WrongMethodError(MethodNotAllowedError):
    """Knows which methods are allowed, for the header that says so."""

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        super().__init__(f"the method must be {' or '.join(allowed)}, not {_shown(method)}")
        self.allowed = ", ".join(allowed)


def _json(content: Mapping[str, Any], status: int = 200) -> tuple[int, bytes, Headers]:
    return status, orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), [_JSON]


def _check_method(method: str, *allowed: str) -> None:
    if method not in allowed:
        raise _WrongMethodError(method, allowed)


def _shown(text: str) -> str:
    """`text` as an answer may repeat it: not too long, and always valid Unicode."""
    return reprlib.repr(text)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
