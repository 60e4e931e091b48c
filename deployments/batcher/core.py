"""The batcher's core: events in, batches out, on any clock.

It holds the queue of one device and decides when a batch starts and who is in it. It never looks
at a clock, never waits and knows neither asyncio nor threads: the live shell
(`deployments.batcher.shell`) and the simulator drive the same object.

A request carries one row or several. Rows are what is queued, batched and counted: a request may
be cut over several batches, and leaves when its last row is done. Nothing is sealed while the
device is busy: a batch is formed at the instant the device can take it.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from deployments.batcher.arrival_rate import ArrivalRate
from policy.batching_policy import BatchingPolicy


class PolicySource(Protocol):
    """Where the core finds its policy; `policy.table.PolicyTable` is one."""

    def lookup(self, arrival_rate_per_s: float) -> BatchingPolicy:
        """Give the policy for an arrival rate, at once."""


class StartReason(StrEnum):
    """Why a batch was started."""

    LIMIT = "limit"  # the queue reached what the policy waits for
    FULL = "full"  # the queue filled a batch of the maximum size
    MAX_WAIT = "max_wait"  # the oldest request had waited long enough
    DRAIN = "drain"  # the replica is shutting down


@dataclass(eq=False, slots=True)
class Request:
    """A request in the batcher.

    Attributes
    ----------
    arrival_s : float
        When it reached the replica, on the caller's clock. Waits count from here.
    rows : int
        How many rows it carries.
    content : Any
        What the caller wants back with each slice; the core never looks at it.
    """

    arrival_s: float
    rows: int
    content: Any = None
    rows_started: int = field(default=0, init=False)
    cancelled: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows ``start`` to ``stop - 1`` of a request, in one batch."""

    request: Request
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What the device takes next: slices in order of arrival."""

    slices: tuple[Slice, ...]
    size: int
    reason: StartReason


class BatcherCore:
    """Queue and decisions of one device.

    After every event (`arrive`, `device_free`, `cancel`, `drain`, `use`, or the passing of
    `wake_at_s`) the caller asks `next_batch`, until that gives None.

    Parameters
    ----------
    table : PolicySource
        The policy for each arrival rate.
    max_age_ms : float
        No request is kept waiting for others beyond this age, whatever the policy says.
    waiting_room : int
        Rows that may wait, besides those on the device.
    rate_window_s : float
        Time constant of the arrival rate's estimate.
    """

    def __init__(
        self,
        table: PolicySource,
        *,
        max_age_ms: float,
        waiting_room: int,
        rate_window_s: float = 5.0,
    ) -> None:
        self.use(table, max_age_ms=max_age_ms, waiting_room=waiting_room)
        self.arrival_rate = ArrivalRate(rate_window_s)
        self.wake_at_s: float | None = None
        self._queue: deque[Request] = deque()
        self._queue_length = 0
        self._device_busy = False
        self._draining = False

    def use(self, table: PolicySource, *, max_age_ms: float, waiting_room: int) -> None:
        """Swap the policy table and the limits whole; who waits stays in the queue."""
        self.table = table
        self.max_age_ms = max_age_ms
        self.waiting_room = waiting_room

    @property
    def queue_length(self) -> int:
        """Rows that wait, without those on the device."""
        return self._queue_length

    @property
    def device_busy(self) -> bool:
        """Whether a batch is on the device."""
        return self._device_busy

    def has_room(self, rows: int) -> bool:
        """Whether `rows` more may wait; a request larger than the room, when nobody else does."""
        if self._draining:
            return False
        return not self._queue_length or self._queue_length + rows <= self.waiting_room

    def policy(self, now_s: float) -> BatchingPolicy:
        """Give the policy in force at the arrival rate seen."""
        return self.table.lookup(self.arrival_rate.per_s(now_s))

    def arrive(self, now_s: float, request: Request) -> bool:
        """Queue `request`; False: there is no room, and it was not queued."""
        self.arrival_rate.count(now_s, request.rows)
        if not self.has_room(request.rows):
            return False
        self._queue.append(request)
        self._queue_length += request.rows
        return True

    def cancel(self, request: Request) -> None:
        """Give up the rows of `request` that are not on the device yet."""
        if not request.cancelled:
            request.cancelled = True
            self._queue_length -= request.rows - request.rows_started
            # Whoever is behind it in the queue must not wait for its age.
            self._drop_cancelled()

    def device_free(self) -> None:
        """Take note that the device finished its batch."""
        self._device_busy = False

    def drain(self) -> Iterator[Request]:
        """Take nothing more, and start what waits without waiting for others.

        Returns
        -------
        iterator of Request
            Who waits now.
        """
        self._draining = True
        return (request for request in self._queue if not request.cancelled)

    def next_batch(self, now_s: float) -> Batch | None:
        """Start a batch if the device is free and the policy says so.

        Returns
        -------
        Batch or None
            None: wait for the next event, or until `wake_at_s` where that is not None.
        """
        self.wake_at_s = None
        if self._device_busy or not self._queue_length:
            return None
        policy = self.policy(now_s)
        queue_length = self._queue_length
        size = policy.batch_size(queue_length)
        reason = StartReason.FULL if size == policy.max_batch_size else StartReason.LIMIT
        if not size:
            max_age_ms = self.max_age_ms
            if policy.max_wait_ms is not None:
                max_age_ms = min(max_age_ms, policy.max_wait_ms)
            due_s = self._queue[0].arrival_s + 1e-3 * max_age_ms
            if now_s < due_s and not self._draining:
                self.wake_at_s = due_s
                return None
            size = min(queue_length, policy.max_batch_size)
            reason = StartReason.DRAIN if self._draining else StartReason.MAX_WAIT
        self._device_busy = True
        return Batch(tuple(self._take(size)), size, reason)

    def _take(self, size: int) -> Iterator[Slice]:
        """Take the `size` oldest rows off the queue."""
        self._queue_length -= size
        while size:
            request = self._queue[0]
            start = request.rows_started
            stop = min(request.rows, start + size)
            request.rows_started = stop
            size -= stop - start
            if stop == request.rows:
                self._queue.popleft()
                self._drop_cancelled()
            yield Slice(request, start, stop)

    def _drop_cancelled(self) -> None:
        while self._queue and self._queue[0].cancelled:
            self._queue.popleft()
