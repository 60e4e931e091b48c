"""The fast path: middleware and listeners for the HTTP servers that Ray starts.

Ray Serve can put middleware around the HTTP server inside each replica; an environment variable
names `middlewares` (see `deployments.haproxy.routing`). Ray's wrapper costs as much as the rest of
a request's handling, so the fast path skips it. It therefore takes over what the wrapper would do:
the batcher counts the requests, `InferenceApp` cancels those whose clients disconnect, and uvicorn
finishes them before the replica stops.

Ray calls `middlewares` before it starts the HTTP server, so that is also where uvicorn is given
`deployments.http.protocol.InferenceProtocol`: ordinary inference requests then skip ASGI as well.

Ray runs the middleware in every HTTP server of the cluster, including the head's fallback proxy and
the replicas of other applications. A process that hosts no app passes all requests on.

Servers listen on a Unix socket as well, and accept many connections at once. libuv accepts one
connection per listening socket and iteration. Where an iteration takes milliseconds, the last
connection of a burst waits for as many of them as there are connections: HAProxy opens one for each
request that it sends at a time. A socket that listens several times is accepted from as often.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, cast

import uvicorn
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import HTTP_PROTOCOLS

from deployments.haproxy import replica_sockets
from deployments.http.app import ID_IS_ADDED, InferenceApp
from deployments.http.hosted_app import HostedApp
from deployments.http.protocol import InferenceProtocol

#: Connections that are accepted in one iteration, each of which may bring a request.
ACCEPTED_AT_ONCE = 32

logger = logging.getLogger("sojourn.http")


_startup_listening_once = uvicorn.Server.startup


def listen_for_haproxy() -> None:
    """Make this process's uvicorn servers listen on Unix sockets, too, and accept many at once.

    Call this before a server starts. It holds for servers that are given their sockets.
    """
    # Ray makes the server of a replica itself, and offers no hook.
    uvicorn.Server.startup = cast(Any, _startup)  # type: ignore[method-assign]


async def _startup(server: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
    await _startup_listening_once(server, sockets and listening_often(sockets))
    if sockets and server.started:
        await _listen_on_unix_socket(server, sockets[0])


async def _listen_on_unix_socket(server: uvicorn.Server, tcp: socket.socket) -> None:
    """Make a server listen on the Unix socket that belongs to its TCP socket, if there is one.

    It is closed with the others of the server.
    """
    config = server.config
    if tcp.family != socket.AF_INET or config.is_ssl:
        return
    port = tcp.getsockname()[1]
    listener = replica_sockets.open_socket(port)
    if listener is None:
        logger.warning("HAProxy reaches port %d over TCP: its Unix socket cannot be opened", port)
        return

    # As uvicorn makes it for its own sockets.
    create_protocol = partial(
        cast(Any, config.http_protocol_class),
        config=config,
        server_state=server.server_state,
        app_state=server.lifespan.state,
    )
    loop = asyncio.get_running_loop()
    for one in listening_often([listener]):
        server.servers.append(
            await loop.create_unix_server(create_protocol, sock=one, backlog=config.backlog)
        )


def listening_often(sockets: Sequence[socket.socket]) -> list[socket.socket]:
    """Return each socket together with duplicates, which the server closes with its own."""
    return [
        each for one in sockets for each in (one, *(one.dup() for _ in range(ACCEPTED_AT_ONCE - 1)))
    ]


class FastPath:
    """ASGI middleware that sends the model's requests to the hosted app and all others to `app`."""

    #: The app of this process, and its event loop.
    opened: ClassVar[tuple[InferenceApp, asyncio.AbstractEventLoop] | None] = None

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request or pass it on."""
        hosted = InferenceProtocol.hosted
        if hosted is not None and scope["type"] == "http":
            prefix = hosted.root_path
            if scope["path"].startswith((f"{prefix}/v2", f"{prefix}/sojourn/")):
                scope["root_path"] = prefix
                await hosted.app(scope, receive, send)
                return
        scope[ID_IS_ADDED] = True
        await self._app(scope, receive, send)
        if hosted is None and self.opened is not None and scope["type"] == "http":
            app, loop = self.opened
            # Ray may run user code, and with it the batcher, on an event loop of its own.
            if loop is asyncio.get_running_loop():
                # Ray's wrapper writes the route prefix here; a replica can learn it nowhere else.
                InferenceProtocol.hosted = HostedApp(app, scope.get("root_path", ""))


def middlewares() -> list[Middleware]:
    """Return the middleware, and set uvicorn's HTTP protocol and how it listens.

    Serve calls this when it starts an HTTP server, and asks uvicorn for the protocol "auto".
    """
    HTTP_PROTOCOLS["auto"] = f"{InferenceProtocol.__module__}:{InferenceProtocol.__qualname__}"
    listen_for_haproxy()
    return [Middleware(FastPath)]


def open_fast_path(app: InferenceApp) -> None:
    """Open the fast path of this process to `app`. Call this on the batcher's event loop."""
    FastPath.opened, InferenceProtocol.hosted = (app, asyncio.get_running_loop()), None
