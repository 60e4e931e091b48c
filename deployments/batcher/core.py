"""The batcher's core: events in, batches out, on any clock.

It holds the queue of one device and decides when a batch starts and who is in it. It never looks
at a clock, never waits and knows neither asyncio nor threads: the live shell
(`deployments.batcher.shell`) and the simulator drive the same object.

A request carries one row or several. Rows are what is queued, batched and counted: a request may
be cut over several batches, and leaves when its last row is done. Nothing is sealed while the
device is busy: a batch is formed at the instant the device can take it.

Within a priority, first in is first out. A request of high priority is treated as if it had come
`head_start_ms` earlier, so it overtakes what came shortly before it and starves nobody.

A request may have a deadline. One that cannot be met any more is refused on arrival; one that a
batch can no longer meet is dropped as that batch forms, and told so: it never reaches the device.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
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


class Refusal(Enum):
    """Why a request was not queued."""

    FULL = "full"  # no room
    TOO_LATE = "too_late"  # its deadline cannot be met here


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
    deadline_s : float
        When its answer is of no use any more, on the caller's clock.
    priority : int
        0 is normal, 1 is high.
    """

    arrival_s: float
    rows: int
    content: Any = None
    deadline_s: float = math.inf
    priority: int = 0
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
    """What the device takes next: slices in order of their turn."""

    slices: tuple[Slice, ...]
    size: int
    reason: StartReason


@dataclass(frozen=True)
class Limits:
    """What bounds a batcher besides its policy.

    Attributes
    ----------
    max_age_ms : float
        No request is kept waiting for others beyond this age, whatever the policy says.
    waiting_room : int
        Rows that may wait, besides those on the device.
    latency_ms : sequence of float
        Time of a batch; entry ``b - 1`` is for batch size ``b``. What deadlines are judged by.
    head_start_ms : float
        What a request of high priority has ahead of a normal one.
    """

    max_age_ms: float
    waiting_room: int
    latency_ms: Sequence[float]
    head_start_ms: float = 0.0


class BatcherCore:
    """Queue and decisions of one device.

    After every event (`arrive`, `device_free`, `cancel`, `drain`, `use`, or the passing of
    `wake_at_s`) the caller asks `next_batch`, and tells those in `late` that it is too late.

    Parameters
    ----------
    table : PolicySource
        The policy for each arrival rate.
    limits : Limits
        What bounds it otherwise.
    rate_window_s : float
        Time constant of the arrival rate's estimate.

    Attributes
    ----------
    wake_at_s : float or None
        When to ask again, if nothing happens before.
    late : list of Request
        Requests dropped because their deadline cannot be met; the caller empties it.
    wait_factor : float
        What waits are shortened by, 0 to 1, where the world is worse than the policy's model.
    """

    def __init__(self, table: PolicySource, limits: Limits, rate_window_s: float = 5.0) -> None:
        self.use(table, limits)
        self.arrival_rate = ArrivalRate(rate_window_s)
        self.wake_at_s: float | None = None
        self.late: list[Request] = []
        self.wait_factor = 1.0
        self._normal: deque[Request] = deque()
        self._high: deque[Request] = deque()
        self._queue_length = 0
        self._device_busy = False
        self._device_free_s = -math.inf
        self._draining = False

    def use(self, table: PolicySource, limits: Limits) -> None:
        """Swap the policy table and the limits whole; who waits stays in the queue."""
        self.table = table
        self.limits = limits

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
        return not self._queue_length or self._queue_length + rows <= self.limits.waiting_room

    def policy(self, now_s: float) -> BatchingPolicy:
        """Give the policy in force at the arrival rate seen."""
        return self.table.lookup(self.arrival_rate.per_s(now_s))

    def arrive(self, now_s: float, request: Request) -> Refusal | None:
        """Queue `request`, or say why not."""
        self.arrival_rate.count(now_s, request.rows)
        if not self.has_room(request.rows):
            return Refusal.FULL
        if request.deadline_s < math.inf and self._soonest_s(now_s, request) > request.deadline_s:
            return Refusal.TOO_LATE
        (self._high if request.priority else self._normal).append(request)
        self._queue_length += request.rows
        return None

    def _soonest_s(self, now_s: float, request: Request) -> float:
        """When `request` would be done if all ahead of it went in batches of the largest size."""
        latency_ms = self.limits.latency_ms
        largest = len(latency_ms)
        ahead = 0 if request.priority else self._queue_length
        batches, rest = divmod(ahead + request.rows, largest)
        full_ms = batches * latency_ms[-1] + (latency_ms[rest - 1] if rest else 0.0)
        start_s = max(now_s, self._device_free_s) if self._device_busy else now_s
        return start_s + 1e-3 * full_ms

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

    def drain(self) -> None:
        """Take nothing more, and start what waits without waiting for others."""
        self._draining = True

    def next_batch(self, now_s: float) -> Batch | None:
        """Start a batch if the device is free and the policy says so.

        Returns
        -------
        Batch or None
            None: wait for the next event, or until `wake_at_s` where that is not None.
        """
        self.wake_at_s = None
        while not self._device_busy and self._queue_length:
            policy = self.policy(now_s)
            size = policy.batch_size(self._queue_length)
            reason = StartReason.FULL if size == policy.max_batch_size else StartReason.LIMIT
            if not size:
                due_s = self._due_s(policy)
                if now_s < due_s and not self._draining:
                    self.wake_at_s = due_s
                    return None
                size = min(self._queue_length, policy.max_batch_size)
                reason = StartReason.DRAIN if self._draining else StartReason.MAX_WAIT
            slices = tuple(self._take(now_s, size))
            if slices:
                # Fewer than decided where some were too late: the rest still goes, in time.
                size = sum(part.stop - part.start for part in slices)
                self._device_busy = True
                self._device_free_s = now_s + 1e-3 * self._latency_ms(size)
                return Batch(slices, size, reason)
        return None

    def longest_wait_ms(self, policy: BatchingPolicy) -> float:
        """How long the oldest request waits for others at most, under `policy`."""
        max_age_ms = self.limits.max_age_ms
        if policy.max_wait_ms is not None:
            max_age_ms = min(max_age_ms, policy.max_wait_ms)
        return max_age_ms * self.wait_factor

    def _due_s(self, policy: BatchingPolicy) -> float:
        """When the oldest has waited long enough."""
        heads = (queue[0].arrival_s for queue in (self._normal, self._high) if queue)
        return min(heads) + 1e-3 * self.longest_wait_ms(policy)

    def _latency_ms(self, size: int) -> float:
        latency_ms = self.limits.latency_ms
        return latency_ms[min(size, len(latency_ms)) - 1]

    def _take(self, now_s: float, size: int) -> Iterator[Slice]:
        """Take `size` rows off the queue, in turn; drop those that this batch cannot serve."""
        done_s = now_s + 1e-3 * self._latency_ms(size)
        while size and self._queue_length:
            queue = self._next_queue()
            request = queue[0]
            if request.deadline_s < done_s:
                self.late.append(request)
                self.cancel(request)
                continue
            start = request.rows_started
            stop = min(request.rows, start + size)
            request.rows_started = stop
            size -= stop - start
            self._queue_length -= stop - start
            if stop == request.rows:
                queue.popleft()
                self._drop_cancelled()
            yield Slice(request, start, stop)

    def _next_queue(self) -> deque[Request]:
        """Whose turn it is."""
        if not self._high:
            return self._normal
        if not self._normal:
            return self._high
        head_start_s = 1e-3 * self.limits.head_start_ms
        first = self._high[0].arrival_s - head_start_s <= self._normal[0].arrival_s
        return self._high if first else self._normal

    def _drop_cancelled(self) -> None:
        for queue in (self._normal, self._high):
            while queue and queue[0].cancelled:
                queue.popleft()
