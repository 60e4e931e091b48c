"""Listen as HAProxy needs it: on a Unix socket as well, and for many connections at once.

libuv accepts one connection per listening socket and iteration. Where an iteration takes
milliseconds, the last connection of a burst waits for as many of them as there are connections:
HAProxy opens one for each request that it sends at a time. A socket that listens several times is
accepted from as often.
"""

import asyncio
import logging
import math
import socket
from collections.abc import Sequence
from typing import Any, cast

import uvicorn

from deployments.haproxy import replica_sockets

logger = logging.getLogger("sojourn.http")

#: Connections that are accepted in one iteration, each of which may bring a request.
ACCEPTED_AT_ONCE = 32

_startup_listening_once = uvicorn.Server.startup


class AcceptQueue:
    """Connections that wait to be accepted, and since when the next one may have waited.

    While an iteration of the event loop accepts as many as it can, others may wait.
    """

    def __init__(self) -> None:
        self._iteration_s = self._since_s = -math.inf
        self._accepted = 0

    def accepted(self, readable_s: float) -> float:
        """Count a connection, and return since when it may have waited.

        Parameters
        ----------
        readable_s : float
            What is noticed in this iteration of the event loop happened since then: the same for
            all connections of one iteration.
        """
        if readable_s != self._iteration_s:
            if self._accepted < ACCEPTED_AT_ONCE:
                self._since_s = readable_s
            self._iteration_s, self._accepted = readable_s, 0
        self._accepted += 1
        return self._since_s


def listen_for_haproxy() -> None:
    """Have this process's uvicorn servers listen on Unix sockets, too, and accept many at once.

    Call this before a server starts. It holds for servers that are given their sockets.
    """
    # Ray makes the server of a replica itself, and offers no hook.
    uvicorn.Server.startup = cast(Any, _startup)  # type: ignore[method-assign]


async def _startup(server: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
    await _startup_listening_once(server, sockets and listening_often(sockets))
    if sockets and server.started:
        await _listen_on_unix_socket(server, sockets[0])


async def _listen_on_unix_socket(server: uvicorn.Server, tcp: socket.socket) -> None:
    """Have a server listen on the Unix socket that belongs to its TCP socket, if there is one.

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

    def create_protocol() -> asyncio.Protocol:
        # As uvicorn does for its own sockets.
        protocol: Any = config.http_protocol_class
        return cast(
            asyncio.Protocol,
            protocol(
                config=config, server_state=server.server_state, app_state=server.lifespan.state
            ),
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
