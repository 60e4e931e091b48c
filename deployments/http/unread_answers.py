"""Answers that wait for their clients to read them, bounded in memory."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

#: How long HAProxy may still hold what it has of an answer that was broken off: as long as it waits
#: for its client (`deployments.haproxy.routing`).
HELD_BY_HAPROXY_S = 30.0


class UnreadAnswers:
    """The connections whose clients read slower than they are answered.

    If too much is unread, those are broken off that have waited longest.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: When connections were broken off.
        self._broken_off_s: deque[float] = deque()
        #: Their unread bytes, those first that have waited longest.
        self._waiting: dict[asyncio.Transport, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        """Return how many wait for their clients, here or in HAProxy."""
        broken_off_s = self._broken_off_s
        while broken_off_s and broken_off_s[0] < self._clock() - HELD_BY_HAPROXY_S:
            broken_off_s.popleft()
        return len(self._waiting) + len(broken_off_s)

    def add(self, transport: asyncio.Transport, limit_bytes: int) -> None:
        """Record a connection whose client does not keep up, and keep to the limit.

        `remove` ends that.
        """
        self.remove(transport)
        self._waiting[transport] = transport.get_write_buffer_size()
        self._bytes += self._waiting[transport]
        while self._bytes > limit_bytes and len(self._waiting) > 1:
            slowest = next(iter(self._waiting))
            self.remove(slowest)
            slowest.abort()
            self._broken_off_s.append(self._clock())

    def remove(self, transport: asyncio.Transport) -> None:
        """Record that a client has caught up, or has left."""
        self._bytes -= self._waiting.pop(transport, 0)
