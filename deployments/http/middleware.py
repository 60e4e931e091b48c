"""The fast path: ASGI middleware that answers the model's requests before Ray's own wrapper.

Ray Serve can put middleware around the HTTP server inside each replica; an environment variable
names `middlewares` (see `deployments.haproxy.routing`). Ray's wrapper costs as much as the rest of
a request's handling, so the fast path skips it. It therefore takes over what the wrapper would do:
the batcher counts the requests, `InferenceApp` cancels those whose clients disconnect, and uvicorn
finishes them before the replica stops.

Ray calls `middlewares` before it starts the HTTP server, so that is also where uvicorn is given
`deployments.http.protocol.InferenceProtocol`: ordinary inference requests then skip ASGI as well.

Ray runs the middleware in every HTTP server of the cluster, including the head's fallback proxy and
the replicas of other applications. A process that hosts no app passes all requests on.
"""

import asyncio
from dataclasses import dataclass

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import HTTP_PROTOCOLS

from deployments.http.app import InferenceApp
from deployments.http.listeners import listen_for_haproxy
from deployments.http.protocol import HostedApp, InferenceProtocol
from deployments.http.request import REQUEST_ID


@dataclass
class _HostedApp:
    """The app of this process, its event loop and its URL prefix."""

    app: InferenceApp
    loop: asyncio.AbstractEventLoop
    #: The application's route prefix. None until the first request has shown it.
    root_path: str | None = None


class FastPath:
    """ASGI middleware that sends the model's requests to the hosted app and all others to `app`."""

    hosted: _HostedApp | None = None

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request or pass it on."""
        hosted = FastPath.hosted
        if hosted is None or scope["type"] != "http":
            await self._app(scope, receive, send)
        elif hosted.root_path is None:
            await self._app(scope, receive, _drop_repeated_request_ids(send))
            # Ray's wrapper writes the route prefix here; a replica can learn it nowhere else.
            hosted.root_path = scope.get("root_path", "")
            InferenceProtocol.hosted = HostedApp(hosted.app, hosted.loop, hosted.root_path)
        elif (
            not scope["path"].startswith((f"{hosted.root_path}/v2", f"{hosted.root_path}/sojourn/"))
            # Ray may run user code, and with it the batcher, on an event loop of its own.
            or hosted.loop is not asyncio.get_running_loop()
        ):
            await self._app(scope, receive, _drop_repeated_request_ids(send))
        else:
            scope["root_path"] = hosted.root_path
            await hosted.app(scope, receive, send)


def _drop_repeated_request_ids(send: Send) -> Send:
    """Keep only the first request id: the app and Ray's wrapper each add one."""

    async def send_with_one_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            indices = [index for index, (name, _) in enumerate(headers) if name == REQUEST_ID]
            for index in reversed(indices[1:]):
                del headers[index]
            message = {**message, "headers": headers}
        await send(message)

    return send_with_one_id


def middlewares() -> list[Middleware]:
    """Return the middleware, and set uvicorn's HTTP protocol and how it listens.

    Serve calls this when it starts an HTTP server, and asks uvicorn for the protocol "auto".
    """
    HTTP_PROTOCOLS["auto"] = f"{InferenceProtocol.__module__}:{InferenceProtocol.__qualname__}"
    listen_for_haproxy()
    return [Middleware(FastPath)]


def open_fast_path(app: InferenceApp) -> None:
    """Open the fast path of this process to `app`. Call this on the batcher's event loop."""
    FastPath.hosted = _HostedApp(app, asyncio.get_running_loop())
