"""The queue of ordinary batches: priorities, kinds, and slices back from failed batches."""

import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from itertools import chain, takewhile
from typing import Any

from policy.batcher.requests import Request, Slice

#: Cancelled requests that may stay in a queue before it is looked through for them.
_MIN_CANCELLED = 16


class RequestQueue:
    """Rows that wait for an ordinary batch.

    Slices put back after a failed batch go first. Requests that a free device has let wait for
    others follow, and then all others, treated as if they had arrived a head start earlier for each
    step of their priority; both first in, first out. The rest of a request that has begun, and is
    to be answered in time, goes before all that arrive later. Only requests of the kind of the
    first one are taken together.
    """

    def __init__(self) -> None:
        self.rows = 0
        #: A free device has let the requests wait that arrived until then.
        self.let_wait_until_s = -math.inf
        #: Of so many rows, requests are let in only to be answered in time.
        self.rows_in_time = 0
        self._newest_s = -math.inf
        #: By priority, the lowest first.
        self._queues: list[deque[Request]] = [deque()]
        self._rows_by_priority = [0]
        self._returned: deque[Slice] = deque()
        #: But for None, the only kind where it is one.
        self._rows_by_kind: dict[Hashable, int] = {}
        self._has_deadlines = False
        #: At least as many as the cancelled requests that are still in the queues.
        self._cancelled = 0

    @property
    def has_returned_slices(self) -> bool:
        return bool(self._returned)

    @property
    def has_several_kinds(self) -> bool:
        return len(self._rows_by_kind) > 1

    def rows_of(self, kind: Hashable) -> int:
        return self.rows if kind is None else self._rows_by_kind.get(kind, 0)

    def rows_from(self, priority: int) -> int:
        """Return how many rows wait that a new request of this priority does not overtake."""
        if not priority:
            return self.rows
        rows = sum(self._rows_by_priority[priority:])
        for part in self._returned:
            if part.request.priority < priority and not part.request.cancelled:
                rows += part.rows
        for queue in self._queues[:priority]:
            for one in takewhile(self._keeps_its_turn, queue):
                rows += 0 if one.cancelled else one.rows - one.rows_started
        return rows

    def _keeps_its_turn(self, request: Request) -> bool:
        """Return whether no later request overtakes this one, whatever its priority."""
        return request.begun_s < math.inf or request.arrival_s <= self.let_wait_until_s

    def rows_ahead(self, kind: Hashable, batch_size: int, priority: int = 0) -> int:
        """Return the rows that wait before a request, with batches of other kinds as if full."""
        if not self._rows_by_kind:
            return self.rows_from(priority)
        by_kind = self._rows_by_kind
        if priority:
            by_kind = dict(self.returned_rows())
            for one in chain(*self._queues):
                first = one.priority >= priority or self._keeps_its_turn(one)
                if first and not one.cancelled:
                    rows = one.rows - one.rows_started
                    by_kind[one.kind] = by_kind.get(one.kind, 0) + rows
            if not by_kind:
                return 0
        batches = sum([-(-rows // batch_size) for other, rows in by_kind.items() if other != kind])
        if kind is None:
            batches -= 1  # it may still fit into one of them
        return batch_size * batches + by_kind.get(kind, 0)

    def first_kind(self, head_start_s: float) -> Hashable:
        """Return the kind of the request that goes next; there must be one."""
        if self._returned:
            return self._returned[0].request.kind
        return self._next_queue(head_start_s)[0].kind

    def append(self, request: Request) -> None:
        while len(self._queues) <= request.priority:
            self._queues.append(deque())
            self._rows_by_priority.append(0)
        self._queues[request.priority].append(request)
        self._newest_s = max(self._newest_s, request.arrival_s)
        self._count(request, request.rows)
        if request.deadline_s < math.inf:
            self._has_deadlines = True

    def put_back(self, slices: Sequence[Slice]) -> None:
        """Requeue slices of a failed batch at the head, in order; skip cancelled requests."""
        for part in reversed(slices):
            if not part.request.cancelled:
                self._count(part.request, part.rows)
                self._returned.appendleft(part)

    def discard(self, request: Request) -> None:
        """Remove the rows of a cancelled request."""
        self._count(request, -request.rows_queued)
        # The heads must be live requests: their age decides when a batch starts.
        self._drop_cancelled_heads()
        self._cancelled += 1
        entries = sum(map(len, self._queues)) + len(self._returned)
        # Each cancelled request pays for looking at two entries at most.
        if self._cancelled > max(_MIN_CANCELLED, entries // 2):
            self._drop_cancelled()

    def returned_rows(self) -> Counter[Hashable]:
        """Return how many rows of failed batches wait, by their kinds."""
        rows: Counter[Hashable] = Counter()
        for part in self._returned:
            if not part.request.cancelled:
                rows[part.request.kind] += part.rows
        return rows

    def in_order(self, head_start_s: float) -> list[Request]:
        """Return the requests in the order in which they go next, after what was returned."""
        waiting = [one for one in chain(*self._queues) if not one.cancelled]
        waiting.sort(key=lambda one: (*self._turn(one, head_start_s), -one.priority))
        return waiting

    def requests(self) -> list[Request]:
        """Return the waiting requests; one with several slices may appear more than once."""
        return [*chain(*self._queues), *(part.request for part in self._returned)]

    def oldest_arrival_s(self) -> float:
        """Return when the oldest request that was never in a batch arrived; infinity if none."""
        heads = [queue[0].arrival_s for queue in self._queues if queue]
        return min(heads, default=math.inf)

    def earliest_deadline_s(self) -> float:
        """Return the earliest deadline of the waiting requests; infinity if none has one."""
        self._has_deadlines &= self.rows > 0
        if not self._has_deadlines:
            return math.inf
        waiting = chain(*self._queues)
        return min((one.deadline_s for one in waiting if not one.cancelled), default=math.inf)

    def take(
        self,
        size: int,
        done_s: float,
        oldest_s: float,
        head_start_s: float,
        miss: Callable[[Request], None],
        kind: Hashable = None,
    ) -> list[Slice]:
        """Remove the next `size` rows of a kind.

        What would be answered too late, as it arrived before `oldest_s` or is due before `done_s`,
        goes to `miss`, which must cancel the request and `discard` it here.
        """
        slices: list[Slice] = []
        passed_over: list[tuple[deque[Any], Any]] = []
        while size and self._returned:
            request, start, stop = self._returned[0]
            if request.kind != kind:
                passed_over.append((self._returned, self._returned.popleft()))
                self._drop_cancelled_heads()
                continue
            if request.deadline_s < done_s or request.arrival_s < oldest_s:
                miss(request)
                continue
            if stop > start + size:
                stop = start + size
                self._returned[0] = Slice(request, stop, self._returned[0].stop)
            else:
                self._returned.popleft()
            slices.append(Slice(request, start, stop))
            self._count(request, start - stop)
            size -= stop - start
            self._drop_cancelled_heads()
        while size and (queue := self._next_queue(head_start_s)):
            request = queue[0]
            if request.kind != kind:
                passed_over.append((queue, queue.popleft()))
                self._drop_cancelled_heads()
                continue
            # A request that was let in although it takes too long, or has begun, is finished.
            too_old = request.arrival_s < oldest_s and not request.rows_started
            if request.deadline_s < done_s or too_old:
                miss(request)
                continue
            start = request.rows_started
            stop = min(request.rows, start + size)
            if not start and request.rows <= self.rows_in_time:
                request.begun_s = self._newest_s
            request.rows_started = stop
            slices.append(Slice(request, start, stop))
            self._count(request, start - stop)
            size -= stop - start
            if stop == request.rows:
                queue.popleft()
                while queue and queue[0].cancelled:
                    queue.popleft()
        for queue, entry in reversed(passed_over):
            queue.appendleft(entry)
        return slices

    def _next_queue(self, head_start_s: float) -> deque[Request]:
        """Return the queue whose head goes next; an empty one if all are."""
        if len(self._queues) == 1:
            return self._queues[0]
        waiting = [queue for queue in reversed(self._queues) if queue]
        return min(
            waiting, key=lambda queue: self._turn(queue[0], head_start_s), default=self._queues[0]
        )

    def _turn(self, request: Request, head_start_s: float) -> tuple[bool, float]:
        """Return the key of the order: a device that let a request wait owes it its time."""
        if request.arrival_s <= self.let_wait_until_s:
            return False, request.arrival_s
        turn_s = request.arrival_s - request.priority * head_start_s
        begun_s = request.begun_s - (len(self._queues) - 1) * head_start_s
        return True, min(turn_s, begun_s)

    def _count(self, request: Request, rows: int) -> None:
        request.rows_queued += rows
        self.rows += rows
        self._rows_by_priority[request.priority] += rows
        if request.kind is not None:
            waiting = self._rows_by_kind.get(request.kind, 0) + rows
            if waiting:
                self._rows_by_kind[request.kind] = waiting
            else:
                self._rows_by_kind.pop(request.kind, None)

    def _drop_cancelled(self) -> None:
        # In place: `take` may hold entries that go back to these very queues.
        for queue in self._queues:
            live = [one for one in queue if not one.cancelled]
            queue.clear()
            queue.extend(live)
        returned = [part for part in self._returned if not part.request.cancelled]
        self._returned.clear()
        self._returned.extend(returned)
        self._cancelled = 0

    def _drop_cancelled_heads(self) -> None:
        for queue in self._queues:
            while queue and queue[0].cancelled:
                queue.popleft()
        while self._returned and self._returned[0].request.cancelled:
            self._returned.popleft()
