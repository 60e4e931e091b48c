"""The time that a connection's latest bytes waited in its socket, by the kernel's own account.

The event loop can only bound that (`deployments.batcher.front_meter`), and it knows nothing of a
connection that it has not accepted yet: in a burst of them, the first request of a new one waits
while others are answered.
"""

import asyncio
import contextlib
import socket
import struct
import sys

#: The kernel tells the time in ticks of 1 to 10 ms, so shorter waits are left to the bound.
RESOLUTION_S = 0.005

# `tcpi_last_data_recv` of Linux's `struct tcp_info`: ms since the latest data arrived.
_LAST_DATA_RECEIVED = struct.Struct("=52xI")


class _BorrowedSocket(socket.socket):
    """A socket whose descriptor belongs to a transport, which closes it."""

    def __del__(self) -> None:
        self.detach()


class SocketWait:
    """Ask the kernel how long a connection's latest bytes have waited.

    Asking a transport's own socket takes uvloop three times as long.

    Parameters
    ----------
    transport : BaseTransport
        It must be open whenever this is asked.
    """

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._socket: socket.socket | None = None
        of_transport = transport.get_extra_info("socket")
        if sys.platform == "linux" and of_transport is not None:
            with contextlib.suppress(OSError):
                self._socket = _BorrowedSocket(fileno=of_transport.fileno())

    def waited_s(self) -> float | None:
        """Return how long ago the latest data of the connection arrived, in seconds.

        None if the kernel does not tell: on other systems than Linux, or where the connection is
        not TCP.
        """
        if self._socket is None:
            return None
        try:
            info = self._socket.getsockopt(
                socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED.size
            )
            return 1e-3 * float(_LAST_DATA_RECEIVED.unpack(info)[0])
        except (OSError, struct.error):
            return None
