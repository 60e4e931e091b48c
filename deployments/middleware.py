"""The short way in: requests for our model, taken before Ray's own wrapper sees them.

Serve lets a cluster put middleware around the HTTP server inside each replica (the environment
names `middlewares`, see `deployments.routing`). Ray's wrapper costs as much as all the rest of a
request's way, so the model's requests are answered here. What Ray then no longer does for them is
ours: they are counted by the batcher, given up when their client leaves (`InferenceApp`), and
finished before the replica goes (uvicorn, which Ray stops in order, waits for them).

The same hook runs in every HTTP server of the cluster, the head's fallback proxy and the replicas
of other applications too. Where this process hosts no model of ours, it passes requests on.
"""

import asyncio
from dataclasses import dataclass

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.http.app import InferenceApp
from deployments.http.request import REQUEST_ID


@dataclass
class _Entry:
    """The app of this process, and where it is reached."""

    app: InferenceApp
    loop: asyncio.AbstractEventLoop
    #: What Ray calls the root path: the application's route prefix; None until a request told.
    root_path: str | None = None


class FastPath:
    """ASGI middleware: our model's requests to its app, all others on to `app`."""

    entry: _Entry | None = None

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        entry = FastPath.entry
        if entry is None or scope["type"] != "http":
            await self._app(scope, receive, send)
        elif entry.root_path is None:
            await self._app(scope, receive, _with_one_request_id(send))
            # Ray knows the route prefix and writes it here; a replica is told it nowhere else.
            entry.root_path = scope.get("root_path", "")
        elif (
            not scope["path"].startswith((f"{entry.root_path}/v2", f"{entry.root_path}/sojourn/"))
            # Ray can be told to run user code on a loop of its own; the batcher lives there.
            or entry.loop is not asyncio.get_running_loop()
        ):
            await self._app(scope, receive, _with_one_request_id(send))
        else:
            scope["root_path"] = entry.root_path
            await entry.app(scope, receive, send)


def _with_one_request_id(send: Send) -> Send:
    """Keep the first of the request ids that our app and Ray's wrapper both answer with."""

    async def send_once(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            places = [place for place, (name, _) in enumerate(headers) if name == REQUEST_ID]
            for place in reversed(places[1:]):
                del headers[place]
            message = {**message, "headers": headers}
        await send(message)

    return send_once


def middlewares() -> list[Middleware]:
    """Give Serve the middleware; it calls this as it starts an HTTP server."""
    return [Middleware(FastPath)]


def open_fast_path(app: InferenceApp) -> None:
    """Let this process answer `app`'s requests before Ray's wrapper; call on the batcher's loop."""
    FastPath.entry = _Entry(app, asyncio.get_running_loop())
