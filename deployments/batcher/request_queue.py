"""The queue of ordinary batches: two priorities, and slices that come back from failed batches."""

import math
from collections import deque
from collections.abc import Callable, Sequence

from deployments.batcher.requests import Request, Slice

#: Cancelled requests that may stay in a queue before it is looked through for them.
_MIN_CANCELLED = 16


class RequestQueue:
    """Rows that wait for an ordinary batch.

    Slices put back after a failed batch go first. Then the order is first in, first out, with
    every high-priority request treated as if it had arrived a head start earlier.

    Attributes
    ----------
    rows : int
        Rows that wait.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._normal: deque[Request] = deque()
        self._high: deque[Request] = deque()
        self._returned: deque[Slice] = deque()
        self._has_deadlines = False
        #: At least as many as the cancelled requests that are still in the queues.
        self._cancelled = 0

    @property
    def has_returned_slices(self) -> bool:
        """Whether slices of failed batches wait."""
        return bool(self._returned)

    def append(self, request: Request) -> None:
        """Queue all rows of a new request."""
        (self._high if request.priority else self._normal).append(request)
        request.rows_queued = request.rows
        self.rows += request.rows
        if request.deadline_s < math.inf:
            self._has_deadlines = True

    def put_back(self, slices: Sequence[Slice]) -> None:
        """Put slices of a failed batch at the head, in order; skip cancelled requests."""
        for part in reversed(slices):
            if not part.request.cancelled:
                part.request.rows_queued += part.rows
                self.rows += part.rows
                self._returned.appendleft(part)

    def discard(self, request: Request) -> None:
        """Remove the rows of a cancelled request."""
        self.rows -= request.rows_queued
        request.rows_queued = 0
        # The heads must be live requests: their age decides when a batch starts.
        self._drop_cancelled_heads()
        self._cancelled += 1
        entries = len(self._normal) + len(self._high) + len(self._returned)
        # Each cancelled request pays for looking at two entries at most.
        if self._cancelled > max(_MIN_CANCELLED, entries // 2):
            self._drop_cancelled()

    def requests(self) -> list[Request]:
        """Return the waiting requests; one with several slices may appear more than once."""
        return [*self._normal, *self._high, *(part.request for part in self._returned)]

    def oldest_arrival_s(self) -> float:
        """Return when the oldest request that was never in a batch arrived; infinity if none."""
        heads = [queue[0].arrival_s for queue in (self._normal, self._high) if queue]
        return min(heads, default=math.inf)

    def earliest_deadline_s(self) -> float:
        """Return the earliest deadline of the waiting requests; infinity if none has one."""
        self._has_deadlines &= self.rows > 0
        if not self._has_deadlines:
            return math.inf
        waiting = (*self._normal, *self._high)
        return min((one.deadline_s for one in waiting if not one.cancelled), default=math.inf)

    def take(
        self,
        size: int,
        done_s: float,
        oldest_s: float,
        head_start_s: float,
        miss: Callable[[Request], None],
    ) -> list[Slice]:
        """Remove the next `size` rows, skipping requests that the batch would answer too late.

        Parameters
        ----------
        size : int
            Rows to take; fewer are taken if the queue runs out.
        done_s : float
            When the batch will be done.
        oldest_s : float
            A request that arrived before this would be answered too late.
        head_start_s : float
            Head start of high priority.
        miss : callable
            Called with each request that would be answered too late; it must cancel the request
            and `discard` it here.

        Returns
        -------
        list of Slice
            In the order of the queue; a request may be cut.
        """
        slices: list[Slice] = []
        while size and self._returned:
            request, start, stop = self._returned[0]
            if request.deadline_s < done_s or request.arrival_s < oldest_s:
                miss(request)
                continue
            if stop > start + size:
                stop = start + size
                self._returned[0] = Slice(request, stop, self._returned[0].stop)
            else:
                self._returned.popleft()
            slices.append(Slice(request, start, stop))
            request.rows_queued -= stop - start
            self.rows -= stop - start
            size -= stop - start
            self._drop_cancelled_heads()
        while size and (queue := self._next_queue(head_start_s)):
            request = queue[0]
            # A request that was let in although it takes too long, or has begun, is finished.
            too_old = request.arrival_s < oldest_s and not request.rows_started
            if request.deadline_s < done_s or too_old:
                miss(request)
                continue
            start = request.rows_started
            stop = min(request.rows, start + size)
            request.rows_started = stop
            slices.append(Slice(request, start, stop))
            request.rows_queued -= stop - start
            self.rows -= stop - start
            size -= stop - start
            if stop == request.rows:
                queue.popleft()
                while queue and queue[0].cancelled:
                    queue.popleft()
        return slices

    def _next_queue(self, head_start_s: float) -> deque[Request]:
        """Return the queue whose head goes next; an empty one if both are."""
        if not self._high:
            return self._normal
        if not self._normal:
            return self._high
        high_first = self._high[0].arrival_s - head_start_s <= self._normal[0].arrival_s
        return self._high if high_first else self._normal

    def _drop_cancelled(self) -> None:
        self._normal = deque(one for one in self._normal if not one.cancelled)
        self._high = deque(one for one in self._high if not one.cancelled)
        self._returned = deque(part for part in self._returned if not part.request.cancelled)
        self._cancelled = 0

    def _drop_cancelled_heads(self) -> None:
        for queue in (self._normal, self._high):
            while queue and queue[0].cancelled:
                queue.popleft()
        while self._returned and self._returned[0].request.cancelled:
            self._returned.popleft()
