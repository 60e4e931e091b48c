"""Repeated reads of slow sources, such as Ray's directory, in the background."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Generic, TypeVar

logger = logging.getLogger("sojourn.control")

Content = TypeVar("Content")


class BackgroundReader(Generic[Content]):
    """Call `read`, in a thread, when its result is asked for and the last call is old.

    `first` is the content until `read` has returned another; it returns None if it finds nothing.
    Nobody waits longer than `timeout_s`; without the GCS, Ray's directory, a call takes far longer.
    """

    def __init__(
        self,
        read: Callable[[], Content | None],
        first: Content,
        period_s: float,
        clock: Callable[[], float] = time.monotonic,
        timeout_s: float = 0.5,
    ) -> None:
        self._read, self._content, self._timeout_s = read, first, timeout_s
        self._period_s, self._clock = period_s, clock
        self._read_s = -math.inf
        self._reading: asyncio.Task[Content | None] | None = None

    async def content(self) -> Content:
        """Return what `read` returned last, called again if the last call is `period_s` ago.

        While a call hangs, and where it finds nothing or fails, this is the result before.
        """
        now_s = self._clock()
        if self._reading is None and now_s - self._read_s >= self._period_s:
            # Concurrent calls return the last content instead of reading, too.
            self._read_s = now_s
            self._reading = asyncio.create_task(asyncio.to_thread(self._read))
            self._reading.add_done_callback(self._take)
            await asyncio.wait([self._reading], timeout=self._timeout_s)
        return self._content

    def _take(self, reading: "asyncio.Task[Content | None]") -> None:
        self._reading = None
        if reading.cancelled():
            return
        if error := reading.exception():
            # In a process that is about to end, threads and Ray end before the event loop.
            logger.info("reading in the background failed: %r", error)
        elif (content := reading.result()) is not None:
            self._content = content
