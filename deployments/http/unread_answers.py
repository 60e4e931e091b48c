"""Answers that wait for their clients to read them, bounded in memory."""

import asyncio


class UnreadAnswers:
    """The connections whose clients read slower than they are answered.

    Parameters
    ----------
    limit_bytes : int
        If more is unread, the connections are broken off that have waited longest.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        #: Their unread bytes, those first that have waited longest.
        self._waiting: dict[asyncio.Transport, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        """Return how many connections wait."""
        return len(self._waiting)

    def add(self, transport: asyncio.Transport) -> None:
        """Record a connection whose client does not keep up; `remove` ends that."""
        self.remove(transport)
        self._waiting[transport] = transport.get_write_buffer_size()
        self._bytes += self._waiting[transport]
        while self._bytes > self._limit_bytes and len(self._waiting) > 1:
            slowest = next(iter(self._waiting))
            self.remove(slowest)
            slowest.abort()

    def remove(self, transport: asyncio.Transport) -> None:
        """Record that a client has caught up, or has left."""
        self._bytes -= self._waiting.pop(transport, 0)
