"""Ports for servers that a test starts by a number."""

import asyncio
import itertools
import os
import socket

from tests.support.waiting import LIMIT_S

#: Below the ports that the kernel gives to connections, above those of Ray's workers, and not where
#: Ray Serve has its replicas. A port of the kernel's own choice may belong to anybody's connection
#: by the time that the server binds it.
PORTS = range(20_000, 30_000)
#: Processes that run at the same time begin so far apart.
_STRIDE = 97

_numbers = itertools.count(os.getpid() * _STRIDE)


def free_port() -> int:
    """Return a port on which nobody listens, and which this process has not had for long."""
    for number in itertools.islice(_numbers, len(PORTS)):
        port = PORTS[number % len(PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError("this machine has no free port")


async def until_it_listens(port: int) -> None:
    """Return when the server at `port` takes connections."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return await writer.wait_closed()
