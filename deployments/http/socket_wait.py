"""How long a connection's latest bytes waited in its socket, by the kernel's own account.

The event loop can only bound that (`deployments.batcher.front_meter`), and it knows nothing of a
connection that it has not accepted yet: libuv accepts one connection per iteration, so the first
request of a new one can wait for seconds while the others are answered.
"""

import asyncio
import socket
import struct
import sys

#: The kernel tells the time in ticks of 1 to 10 ms, so shorter waits are left to the bound.
RESOLUTION_S = 0.005

# `tcpi_last_data_recv` of Linux's `struct tcp_info`: ms since the latest data arrived.
_LAST_DATA_RECEIVED = struct.Struct("=52xI")


def waited_in_socket_s(transport: asyncio.BaseTransport) -> float | None:
    """Return how long ago the latest data of a connection arrived, in seconds.

    None if the kernel does not tell: on other systems than Linux, or where the connection is not
    TCP.
    """
    if sys.platform != "linux":
        return None
    try:
        info = transport.get_extra_info("socket").getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED.size
        )
        return 1e-3 * float(_LAST_DATA_RECEIVED.unpack(info)[0])
    except (AttributeError, OSError, struct.error):
        return None
