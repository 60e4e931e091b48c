"""Accept many connections in one iteration of the event loop.

libuv accepts one connection per listening socket and iteration. Where an iteration takes
milliseconds, the last connection of a burst waits for as many of them as there are connections:
HAProxy opens one for each request that it sends at a time. A socket that listens several times is
accepted from as often.
"""

import socket
from collections.abc import Sequence
from typing import Any, cast

import uvicorn

#: Connections that are accepted in one iteration, each of which may bring a request.
ACCEPTED_AT_ONCE = 32

_startup_listening_once = uvicorn.Server.startup


def accept_many() -> None:
    """Have the uvicorn servers of this process accept many connections at once.

    Call this before a server starts. It holds for servers that are given their sockets.
    """
    # Ray makes the server of a replica itself, and offers no hook.
    uvicorn.Server.startup = cast(Any, _startup_listening_often)  # type: ignore[method-assign]


async def _startup_listening_often(
    server: uvicorn.Server, sockets: list[socket.socket] | None = None
) -> None:
    await _startup_listening_once(server, sockets and listening_often(sockets))


def listening_often(sockets: Sequence[socket.socket]) -> list[socket.socket]:
    """Return each socket together with duplicates, which the server closes with its own."""
    return [
        each for one in sockets for each in (one, *(one.dup() for _ in range(ACCEPTED_AT_ONCE - 1)))
    ]
