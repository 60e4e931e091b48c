"""Times of a connection: since when a request could be read, and how long it has been idle."""

import asyncio
import math
import time
from typing import Any, ClassVar

from deployments.http.app import ARRIVAL
from deployments.http.guarded_protocol import GuardedProtocol
from deployments.http.hosted_app import HostedApp
from deployments.http.socket_wait import SocketWait


class TimedProtocol(GuardedProtocol):
    """uvicorn's HTTP protocol, which knows since when requests waited in their socket.

    Attributes
    ----------
    hosted : HostedApp or None
        The app of this process; None: all requests go to uvicorn's own protocol.
    """

    hosted: ClassVar[HostedApp | None] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: None: the connection may have waited to be accepted, with a request in its socket.
        self._socket_wait: SocketWait | None = None
        self._last_answer_s = 0.0
        #: When its connection could first have been made, by how many are accepted at a time.
        self._connected_since_s = -math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note since when the connection may have waited to be accepted."""
        super().connection_made(transport)
        hosted = self.hosted
        if hosted is not None and hosted.loop is self.loop:
            readable_s = hosted.app.service.event_loop_meter.part_read(time.monotonic())
            self._connected_since_s = hosted.accepts.accepted(readable_s)

    @property
    def receive_timeout_s(self) -> float:
        """The longest that a request may take to arrive, in seconds."""
        hosted = self.hosted
        return super().receive_timeout_s if hosted is None else hosted.app.service.receive_timeout_s

    @property
    def _is_busy(self) -> bool:
        """Whether a request on the short way is being read or answered."""
        return False

    def _readable_since_s(self, now_s: float, bound_s: float, sent_us: int = 0) -> float:
        """Return since when what is read now could have been read.

        Parameters
        ----------
        now_s : float
        bound_s : float
            The earliest time possible on a connection that was accepted before, by the meter.
        sent_us : int
            When HAProxy sent the request on, as for `SocketWait.waited_s`.
        """
        is_new = self._socket_wait is None
        if self._socket_wait is None:
            self._socket_wait = SocketWait(self.transport)
        elif now_s - bound_s <= self._socket_wait.resolution_s:
            return bound_s
        waited_s = self._socket_wait.waited_s(sent_us)
        if waited_s is None:
            return bound_s
        since_s = now_s - waited_s
        if not is_new:
            return max(bound_s, since_s)
        if self._socket_wait.is_unix:
            # HAProxy may have sent it to a replica before that died: that is not a wait here.
            since_s = max(since_s, self._connected_since_s)
        return min(bound_s, since_s)

    def on_message_begin(self) -> None:
        """Note when the message that begins could have been read."""
        super().on_message_begin()
        hosted = self.hosted
        if hosted is not None and hosted.loop is self.loop:
            now_s = time.monotonic()
            bound_s = hosted.app.service.event_loop_meter.request_read(now_s)
            arrival_s = self._readable_since_s(now_s, bound_s)
            self.scope[ARRIVAL] = arrival_s  # type: ignore[literal-required]

    def on_body(self, body: bytes) -> None:
        """Note that the loop is at work for a part of a body."""
        hosted = self.hosted
        if hosted is not None and hosted.loop is self.loop:
            hosted.app.service.event_loop_meter.part_read(time.monotonic())
        super().on_body(body)

    def _expect_request(self, within_s: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            within_s, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it was idle for the keep-alive timeout."""
        self.timeout_keep_alive_task = None
        if self._is_busy:
            return  # its answer, or the end of its body, sets the timer again
        left_s = self._last_answer_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._expect_request(left_s)
        else:
            super().timeout_keep_alive_handler()

    def on_response_complete(self) -> None:
        """Note when the connection became idle."""
        self._last_answer_s = self.loop.time()
        super().on_response_complete()
