"""How long a connection's latest bytes waited in its socket, as the kernel or HAProxy tells it.

The event loop can only bound that (`deployments.batcher.event_loop_meter`), and it knows nothing of
a connection that it has not accepted yet: in a burst of them, the first request of a new one waits
while others are answered. Of TCP sockets the kernel knows it. Of Unix sockets HAProxy does, which
is on the same machine (`deployments.haproxy.replica_sockets`), to the microsecond.
"""

import asyncio
import contextlib
import math
import socket
import struct
import sys
import time

#: Connections that are accepted in one iteration, each of which may bring a request.
ACCEPTED_AT_ONCE = 32
#: The kernel tells the time in ticks of 1 to 10 ms, so shorter waits are left to the bound.
RESOLUTION_S = 0.005

# `tcpi_last_data_recv` of Linux's `struct tcp_info`: ms since the latest data arrived.
_LAST_DATA_RECEIVED = struct.Struct("=52xI")


class _BorrowedSocket(socket.socket):
    """A socket whose descriptor belongs to a transport, which closes it."""

    def __del__(self) -> None:
        self.detach()


class SocketWait:
    """The wait of a connection's latest bytes in its socket.

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
        #: Whether it is a Unix socket.
        self.is_unix = self._socket is not None and self._socket.family == socket.AF_UNIX
        #: Shorter waits are not told.
        self.resolution_s = 0.0 if self.is_unix else RESOLUTION_S

    def waited_s(self, sent_us: int = 0) -> float | None:
        """Return how long ago the latest data of the connection arrived, in seconds.

        None if it is not known: on other systems than Linux, and for what did not come from HAProxy
        on a Unix socket.

        Parameters
        ----------
        sent_us : int
            When HAProxy sent the latest request on, in µs of `time.time`; 0 if it did not say.
        """
        if self._socket is None:
            return None
        if self.is_unix:
            return max(0.0, time.time() - 1e-6 * sent_us) if sent_us else None
        try:
            info = self._socket.getsockopt(
                socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED.size
            )
            return 1e-3 * float(_LAST_DATA_RECEIVED.unpack(info)[0])
        except (OSError, struct.error):
            return None


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
