"""The batcher's core: events in, batches out, on any clock.

It holds the queue of one device and decides when a batch starts and who is in it. It never looks
at a clock, never waits and knows neither asyncio nor threads: the live shell
(`deployments.batcher.asyncio_batcher`) and the simulator drive the same object.

A request carries one row or several. Rows are what is queued, batched and counted: a request may
be cut over several batches, and leaves when its last row is done. Nothing is sealed while the
device is busy: a batch is formed at the instant the device can take it.

Within a priority, first in is first out. A request of high priority is treated as if it had come
`head_start_ms` earlier, so it overtakes what came shortly before it and starves nobody.

A request may have a deadline. One that cannot be met any more is refused on arrival; one that a
batch can no longer meet is dropped as that batch forms, and told so: it never reaches the device.

A batch that fails has a culprit among its requests. Unless the model names it, it is found by
binary splitting: half of the suspects go with the next batch, whose other places are filled from
the queue, so that a test that passes costs nothing. Where it fails, the half that was not in it is
suspected no more: it goes back to the head of the queue, with what had filled the batch. Only a
request that fails alone is told so. The search and ordinary batches share the device: a test that
failed is followed by an ordinary batch, where one is due.
"""

import math
from collections import deque
from collections.abc import Collection, Sequence

from deployments.batcher.arrival_rate import ArrivalRate
from deployments.batcher.bisection import BatchBisection
from deployments.batcher.limits import Limits
from deployments.batcher.requests import (
    Batch,
    PolicySource,
    Refusal,
    Request,
    Slice,
    StartReason,
)
from policy.batching_policy import BatchingPolicy

__all__ = [
    "Batch",
    "BatcherCore",
    "PolicySource",
    "Refusal",
    "Request",
    "Slice",
    "StartReason",
]

# For the sake of a deadline a batch starts this much, or this share of its time, before it must:
# timers are late, and batches vary.
_SLACK_MS = 2.0
_SLACK_SHARE = 0.1


class BatcherCore:
    """Queue and decisions of one device.

    After every event (`arrive`, `device_free`, `device_failed`, `cancel`, `drain`, `use`, or the
    passing of `wake_at_s`) the caller asks `next_batch`, and tells those in `late` and in
    `crowded_out`.

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
    crowded_out : list of Request
        BatchBisection given up because there are more than there is room for, the oldest first. The
        caller empties it.
    wait_factor : float
        What waits are shortened by, 0 to 1, where the world is worse than the policy's model.
    """

    def __init__(self, table: PolicySource, limits: Limits, rate_window_s: float = 5.0) -> None:
        self.use(table, limits)
        self.arrival_rate = ArrivalRate(rate_window_s)
        self.wake_at_s: float | None = None
        self.late: list[Request] = []
        self.crowded_out: list[Request] = []
        self.wait_factor = 1.0
        self._normal: deque[Request] = deque()
        self._high: deque[Request] = deque()
        # What comes back from failed batches: not suspected, and suspected.
        self._returned: deque[Slice] = deque()
        self._suspects = BatchBisection()
        self._test_failed = False
        self._in_line = 0
        self._has_deadlines = False
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
        return self._in_line + self._suspects.rows

    @property
    def device_busy(self) -> bool:
        """Whether a batch is on the device."""
        return self._device_busy

    def has_room(self, rows: int, now_s: float) -> bool:
        """Whether `rows` more may wait; a request larger than the room, when nobody else does.

        A room counts rows, whenever its batch began; shortly before that ends, more can be done in
        time, and those may wait, too. BatchBisection have as much room of their own: they must not keep
        out who fills up their tests.
        """
        if self._draining:
            return False
        if not self._in_line or self._in_line + rows <= self.limits.waiting_room:
            return True
        # Who comes later fills up the last batch.
        largest = len(self.limits.latency_ms)
        full = -(-(self.queue_length + rows) // largest) * largest
        return self._soonest_s(now_s, full) <= now_s + 1e-3 * self.limits.admit_within_ms

    def policy(self, now_s: float) -> BatchingPolicy:
        """Give the policy in force at the arrival rate seen."""
        return self.table.lookup(self.arrival_rate.per_s(now_s))

    def arrive(self, now_s: float, request: Request) -> Refusal | None:
        """Queue `request`, or say why not."""
        self.arrival_rate.count(now_s, request.rows)
        if not self.has_room(request.rows, now_s):
            return Refusal.FULL
        if request.deadline_s < math.inf:
            ahead = 0 if request.priority else self.queue_length
            if self._soonest_s(now_s, ahead + request.rows) > request.deadline_s:
                return Refusal.TOO_LATE
        (self._high if request.priority else self._normal).append(request)
        request.rows_in_line = request.rows
        self._in_line += request.rows
        self._has_deadlines |= request.deadline_s < math.inf
        return None

    def _soonest_s(self, now_s: float, rows: int) -> float:
        """When as many rows as these would be done, in batches of the largest size."""
        latency_ms = self.limits.latency_ms
        batches, rest = divmod(rows, len(latency_ms))
        full_ms = batches * latency_ms[-1] + (latency_ms[rest - 1] if rest else 0.0)
        start_s = max(now_s, self._device_free_s) if self._device_busy else now_s
        return start_s + 1e-3 * full_ms

    def cancel(self, request: Request) -> None:
        """Give up the rows of `request` that are not on the device yet."""
        if not request.cancelled:
            request.cancelled = True
            self._in_line -= request.rows_in_line
            request.rows_in_line = 0
            self._suspects.forget(request)
            # Whoever is behind it in the queue must not wait for its age.
            self._drop_cancelled()

    def device_free(self) -> None:
        """Take note that the device finished its batch."""
        self._device_busy = False
        self._test_failed = False
        self._suspects.passed()

    def device_failed(self, batch: Batch, blamed: Collection[int] = ()) -> list[int]:
        """Take note that the device failed on its batch; who is not to blame waits again.

        A request is in at most 2·log₂(largest batch) + 2 batches for each of its slices, whatever
        fails around it: after log₂(largest batch) - 1 failures it is only in batches that test it.

        Parameters
        ----------
        batch : Batch
            What failed.
        blamed : collection of int
            Places in ``batch.slices`` of those that are to blame, where the model says which; the
            others then need no search.

        Returns
        -------
        list of int
            Places of those whose requests failed: blamed, or alone in their batch. The caller
            tells them.
        """
        self._device_busy = False
        self._test_failed = batch.reason is StartReason.SEARCH
        slices, untested = batch.slices, self._suspects.failed()
        if len(slices) == 1:
            blamed = (0,)
        failed = [place for place in range(len(slices)) if place in blamed]
        for place in failed:
            self.cancel(slices[place].request)
        for part in slices:
            part.request.failed_batches += 1
        suspected = 0 if blamed else batch.suspects or len(slices)
        self._suspects.add(slices[:suspected], guilty=True, first=bool(batch.suspects))
        self._give_back([*untested, *slices[suspected:]])
        for request in self._suspects.crowd_out(self.limits.waiting_room):
            self.cancel(request)
            self.crowded_out.append(request)
        return failed

    def _give_back(self, slices: Sequence[Slice]) -> None:
        """Put `slices` at the head of the queue, but for those that have failed too often."""
        most_failures = (len(self.limits.latency_ms) - 1).bit_length() - 1
        unlucky = []
        for part in reversed(slices):
            if part.request.failed_batches > most_failures:
                unlucky.append(part)
            elif not part.request.cancelled:
                part.request.rows_in_line += part.rows
                self._in_line += part.rows
                self._returned.appendleft(part)
        self._suspects.add(unlucky[::-1], guilty=False)

    def drain(self) -> None:
        """Take nothing more, and start what waits without waiting for others."""
        self._draining = True

    def device_lost(self) -> list[Request]:
        """Take note that the device is gone, and take nothing more; give up who waits.

        Returns
        -------
        list of Request
            Who waited; the caller tells them.
        """
        self.drain()
        back = [part.request for part in self._returned] + self._suspects.requests()
        waiting = [*self._normal, *self._high, *back]
        given_up = [request for request in dict.fromkeys(waiting) if not request.cancelled]
        for request in given_up:
            self.cancel(request)
        self._device_busy = False
        return given_up

    def next_batch(self, now_s: float) -> Batch | None:
        """Start a batch if the device is free and the policy says so.

        Returns
        -------
        Batch or None
            None: wait for the next event, or until `wake_at_s` where that is not None.
        """
        self.wake_at_s = None
        while not self._device_busy and (self._in_line or self._suspects):
            policy = self.policy(now_s)
            size, reason = self._decide(now_s, policy)
            if self._suspects and not (size and self._test_failed):
                slices, suspects = self._test(now_s, policy.max_batch_size)
                reason = StartReason.SEARCH
            elif size:
                slices, suspects = self._take(size, now_s + 1e-3 * self._latency_ms(size)), 0
            else:
                self.wake_at_s = self._due_s(policy)
                return None
            if slices:
                # Fewer than decided where some were too late: the rest still goes, in time.
                size = sum([part.stop - part.start for part in slices])
                self._device_busy = True
                self._device_free_s = now_s + 1e-3 * self._latency_ms(size)
                return Batch(tuple(slices), size, reason, suspects)
        return None

    def _decide(self, now_s: float, policy: BatchingPolicy) -> tuple[int, StartReason]:
        """Say how many of those in line start now, and why."""
        in_line = self._in_line
        size = policy.batch_size(in_line) if in_line else 0
        if size:
            return size, StartReason.FULL if size == policy.max_batch_size else StartReason.LIMIT
        # What was in a failed batch has had its wait.
        if in_line and (self._returned or self._draining or now_s >= self._due_s(policy)):
            size = min(in_line, policy.max_batch_size)
        if self._draining:
            return size, StartReason.DRAIN
        return size, StartReason.AGAIN if self._returned else StartReason.MAX_WAIT

    def _test(self, now_s: float, cap: int) -> tuple[list[Slice], int]:
        """Take those who are tested, and fill their batch up from the queue.

        Returns
        -------
        slices : list of Slice
            Empty where all of them have left, or would be too late.
        suspects : int
            How many of the slices are tested.
        """
        suspects, alone = self._suspects.take(cap)
        size = sum(part.rows for part in suspects)
        # What fills up the batch of the last suspect might be to blame in its place.
        if suspects and not alone:
            size = max(size, min(cap, size + self._in_line))
        done_s = now_s + 1e-3 * self._latency_ms(size)
        tested = [part for part in suspects if self._in_time(part.request, done_s)]
        if len(tested) < len(suspects):
            self._suspects.doubt()
        if not tested:
            self._suspects.passed()
            return [], 0
        size -= sum(part.rows for part in tested)
        return tested + self._take(size, done_s), len(tested)

    def longest_wait_ms(self, policy: BatchingPolicy) -> float:
        """How long the oldest request waits for others at most, under `policy`."""
        max_age_ms = self.limits.max_age_ms
        if policy.max_wait_ms is not None:
            max_age_ms = min(max_age_ms, policy.max_wait_ms)
        return max_age_ms * self.wait_factor

    def _due_s(self, policy: BatchingPolicy) -> float:
        """When the oldest has waited long enough, or a deadline would be missed."""
        heads = [queue[0].arrival_s for queue in (self._normal, self._high) if queue]
        due_s = min(heads, default=math.inf) + 1e-3 * self.longest_wait_ms(policy)
        self._has_deadlines &= self._in_line > 0
        if not self._has_deadlines:
            return due_s
        latency_ms = self._latency_ms(min(self._in_line, policy.max_batch_size))
        slack_ms = max(_SLACK_MS, _SLACK_SHARE * latency_ms)
        deadlines_s = (one.deadline_s for one in (*self._normal, *self._high) if not one.cancelled)
        return min(due_s, min(deadlines_s, default=math.inf) - 1e-3 * (latency_ms + slack_ms))

    def _latency_ms(self, size: int) -> float:
        latency_ms = self.limits.latency_ms
        return latency_ms[min(size, len(latency_ms)) - 1]

    def _take(self, size: int, done_s: float) -> list[Slice]:
        """Take `size` rows off the queue, in turn; drop those who need it before `done_s`."""
        slices: list[Slice] = []
        while size and self._returned:
            part = self._returned[0]
            if self._in_time(part.request, done_s):
                stop = min(part.stop, part.start + size)
                if stop == part.stop:
                    self._returned.popleft()
                else:
                    self._returned[0] = Slice(part.request, stop, part.stop)
                slices.append(Slice(part.request, part.start, stop))
                self._start(slices[-1])
                size -= stop - part.start
            self._drop_cancelled()
        while size and (queue := self._next_queue()):
            request = queue[0]
            if not self._in_time(request, done_s):
                continue
            start = request.rows_started
            stop = min(request.rows, start + size)
            request.rows_started = stop
            slices.append(Slice(request, start, stop))
            self._start(slices[-1])
            size -= stop - start
            if stop == request.rows:
                queue.popleft()
                while queue and queue[0].cancelled:
                    queue.popleft()
        return slices

    def _start(self, part: Slice) -> None:
        """Count the rows of `part` as in line no more."""
        rows = part.stop - part.start
        part.request.rows_in_line -= rows
        self._in_line -= rows

    def _in_time(self, request: Request, done_s: float) -> bool:
        """Whether `done_s` is soon enough for `request`, which is given up where it is not."""
        if request.deadline_s >= done_s:
            return True
        self.late.append(request)
        self.cancel(request)
        return False

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
        while self._returned and self._returned[0].request.cancelled:
            self._returned.popleft()
