"""The batcher core: events in, batches out, on any clock.

The core holds the queue of one or more like devices and decides when a batch starts and which rows
are in it. It reads no clock, never waits, and knows neither asyncio nor threads: the live batcher
(`deployments.batcher.asyncio_batcher`), the simulator and the stages of pipelines drive the same
object.

Requests carry one or more rows. Rows are what is queued, batched and counted: a request may be cut
across several batches, and is done when its last row is. No batch is formed while all devices are
busy; the core forms one at the instant when a device can take it.

Within a priority, requests are served first in, first out. For each step of its priority, a request
is treated as if it had arrived `head_start_ms` earlier: it overtakes requests that arrived shortly
before it, but for those that a free device has let wait for others, and for the rest of one that
has begun. Those that this leaves no time are given up while another replica may answer them.

Requests of different kinds, such as rows of different shapes, share no batch. When a batch starts
follows from all rows that wait; it holds those of the kind of the request that is next.

Every request has a deadline: its own, or the time within which the limits ask for an answer. If
it cannot be met, the request is refused on arrival; if its batch turns out to end too late, the
request is dropped as the batch forms and never reaches the device.

The rows of a batch that fails wait again, or are tested in smaller batches to find the culprit
(`policy.batcher.failed_batches`).
"""

import math
from collections.abc import Callable, Collection, Hashable

from policy.batcher.admission import Admission
from policy.batcher.arrival_rate import ArrivalRate, horizon_s
from policy.batcher.failed_batches import FailedBatches
from policy.batcher.lateness import latest_start_s, too_late
from policy.batcher.limits import Limits
from policy.batcher.request_queue import RequestQueue
from policy.batcher.requests import (
    Batch,
    FixedPolicy,
    PolicySource,
    Refusal,
    Request,
    Slice,
    StartReason,
)
from policy.batching_policy import BatchingPolicy

#: An overdue batch is looked at after so long, and again when it is later by this share.
_LOOK_AFTER_S, _LOOK_GROWTH = 1e-3, 0.25


class BatcherCore:
    """The queue of one or more like devices, and the decisions about their batches.

    After every event (`arrive`, `device_free`, `device_failed`, `cancel`, `drain`, `use`, or
    `wake_at_s` has passed) the caller asks `next_batch`, and answers the requests in
    `deadline_missed`, `given_up` and `crowded_out`.

    Attributes
    ----------
    wake_at_s : float or None
        When to ask again, if nothing happens before.
    deadline_missed, given_up, crowded_out : list of Request
        Requests dropped because their own deadline, or that of the limits, cannot be met; because
        others of higher priority, or an overdue batch, leave them no time here; and suspects for
        which there is no room, the oldest first. The caller empties the lists.
    wait_factor : float
        Multiplies every wait, 0 to 1; below 1 if more requests are late than the model predicts.
    """

    def __init__(
        self, table: PolicySource, limits: Limits, rate_window_s: float = 5.0, devices: int = 1
    ) -> None:
        self.devices, self.running = devices, 0
        self._admission = Admission(limits)
        self._queue = RequestQueue()
        self.arrival_rate = ArrivalRate(rate_window_s)
        self.use(table, limits)
        self.wake_at_s: float | None = None
        self.deadline_missed: list[Request] = []
        self.given_up: list[Request] = []
        self.crowded_out: list[Request] = []
        self.wait_factor = 1.0
        self._failed = FailedBatches(self._queue)
        self._bisection = self._failed.bisection
        #: When the latest batch will be done; None: a device is free.
        self._busy_until_s: float | None = None
        self._draining = False

    def use(self, table: PolicySource, limits: Limits) -> None:
        self.table = table
        self._fixed = table.policy if isinstance(table, FixedPolicy) else None
        self.limits = self._admission.limits = limits
        self._queue.rows_in_time = limits.rows_in_time
        rate = self.arrival_rate
        rate.horizon_s = horizon_s(1e-3 * limits.max_age_ms, rate.window_s)

    @property
    def queue_length(self) -> int:
        """Rows that wait, without those on the device."""
        return self._queue.rows + self._bisection.rows

    @property
    def device_busy(self) -> bool:
        return self._busy_until_s is not None

    def has_room(
        self,
        rows: int,
        now_s: float,
        arrival_s: float | None = None,
        kind: Hashable = None,
        priority: int = 0,
    ) -> bool:
        """Return whether `rows` more rows may wait: those of lower priorities are overtaken."""
        if self._draining:
            return False
        return self._admission.admits(
            rows,
            queued=self._queue.rows_from(priority),
            ahead=self._ahead(kind, priority),
            behind=self._behind(priority),
            device_free_s=self._busy_until_s,
            now_s=now_s,
            arrival_s=now_s if arrival_s is None else arrival_s,
        )

    def _ahead(self, kind: Hashable, priority: int) -> int:
        rows = self._queue.rows_ahead(kind, self.limits.max_batch_size, priority)
        return rows + self._bisection.rows

    def _behind(self, priority: int) -> int:
        return self._queue.rows - self._queue.rows_from(priority)

    def refusal(self, rows: int, now_s: float, arrival_s: float) -> Refusal:
        if not self._draining and self._admission.is_expired(rows, now_s, arrival_s):
            # No replica refuses it to have it tried elsewhere: that would be too late.
            return Refusal.EXPIRED
        return Refusal.FULL

    def is_expired(self, request: Request, now_s: float) -> bool:
        """Return whether even a free device would answer a request too late."""
        return self._admission.is_expired(request.rows, now_s, request.arrival_s)

    def count_refused(self, refusal: Refusal, rows: int, now_s: float) -> None:
        self.arrival_rate.count(now_s, rows)
        if refusal is Refusal.FULL:
            self._admission.count_refused(rows, self.arrival_rate.weight)

    def policy(self, now_s: float) -> BatchingPolicy:
        """Return the policy in force at the observed arrival rate of one device."""
        if self._fixed is not None:
            return self._fixed
        return self.table.lookup(self._rate_per_device(now_s))

    def _rate_per_device(self, now_s: float) -> float:
        return self.arrival_rate.bounded_per_s(now_s) / max(1, self.devices)

    def arrive(self, now_s: float, request: Request) -> Refusal | None:
        """Queue a request, which may have waited to be read, or return why it is refused."""
        kind, priority = request.kind, request.priority
        if not self.has_room(request.rows, now_s, request.arrival_s, kind, priority):
            refusal = self.refusal(request.rows, now_s, request.arrival_s)
            self.count_refused(refusal, request.rows, now_s)
            return refusal
        self.arrival_rate.count(now_s, request.rows)
        self._admission.count_admitted(request.rows, self.arrival_rate.weight)
        if request.deadline_s < math.inf:
            free_s, behind = self._busy_until_s, self._behind(priority)
            ahead = self._ahead(kind, priority)
            rows = self._admission.rows_done(request.rows, ahead, behind, free_s)
            done_s = self._admission.completion_s(rows, now_s, free_s)
            if done_s > request.deadline_s:
                alone_s = self._admission.completion_s(request.rows, now_s, None)
                return Refusal.HOPELESS if alone_s > request.deadline_s else Refusal.DEADLINE
        self._queue.append(request)
        if priority and self._queue.rows_from(priority) < self._queue.rows:
            self._give_up_late(now_s, priority)
        return None

    def give_up_late(self, now_s: float) -> float | None:
        """Drop requests that an overdue batch leaves no time, while another replica may answer.

        Returns when to call this again if the batch has not ended; None: no device is busy.
        """
        free_s = self._busy_until_s
        if free_s is None:
            return None
        first_s = free_s + self._admission.tolerance_s + _LOOK_AFTER_S
        if now_s < first_s:
            return first_s
        self._give_up_late(now_s)
        return now_s + _LOOK_GROWTH * (now_s - free_s)

    def is_overdue(self, now_s: float) -> bool:
        """Return whether a batch is so late that no request could be answered in time."""
        return self._admission.is_overdue(self._busy_until_s, now_s)

    def _give_up_late(self, now_s: float, below: float = math.inf) -> None:
        if self.limits.answer_within_ms == math.inf:
            return
        tested, free_s = self._bisection.rows, self._busy_until_s
        for request in too_late(self._queue, tested, self._admission, free_s, now_s, below):
            self.given_up.append(request)
            self.cancel(request)
            self._admission.count_refused(request.rows, self.arrival_rate.weight)

    def cancel(self, request: Request) -> None:
        """Abandon the rows of `request` that are not on the device yet."""
        self._failed.cancel(request)

    def _miss_deadline(self, request: Request) -> None:
        self.deadline_missed.append(request)
        self.cancel(request)

    def enqueue(self, now_s: float, request: Request) -> None:
        """Queue a request that was admitted elsewhere."""
        if self._fixed is None:
            self.arrival_rate.count(now_s, request.rows)
        self._queue.append(request)

    def device_free(self, batch: Batch | None = None) -> None:
        """Record that a device finished its batch; of several devices, which batch."""
        self._release_device()
        if batch is None or batch.slices_under_test:
            self._failed.test_passed()

    def _release_device(self) -> None:
        self.running = max(0, self.running - 1)
        self._busy_until_s = None

    def device_failed(self, batch: Batch, blamed: Collection[int] = ()) -> list[int]:
        """Record that the device failed on its batch; requests not to blame wait again.

        Returns the indices of the slices whose requests failed, which the caller answers: those
        `blamed`, if the model names the culprits (then nothing is searched), or alone in the batch.
        """
        self._release_device()
        failed, crowded_out = self._failed.put_back(
            batch, blamed, len(self.limits.latency_ms), self.limits.max_queue_rows
        )
        self.crowded_out += crowded_out
        return failed

    def recall(self, batch: Batch, alone: Collection[int]) -> None:
        """Requeue a batch that the device has not been given; drop cancelled requests.

        The slices with the indices `alone` must each run in a batch of their own.
        """
        self._release_device()
        self._failed.recall(batch, alone)

    def release(self, cleared: Callable[[Request], bool]) -> None:
        """Allow `cleared` requests that were to run alone to share batches again."""
        self._failed.release(cleared)

    def drain(self) -> None:
        """Refuse new requests, and start waiting rows without delay."""
        self._draining = True

    def requests(self) -> list[Request]:
        """Return the requests that wait, or of which a part does."""
        waiting = dict.fromkeys(self._queue.requests() + self._bisection.requests())
        return [request for request in waiting if not request.cancelled]

    def device_lost(self) -> list[Request]:
        """Mark the device as lost: refuse new requests, and abandon those that wait."""
        self.drain()
        given_up = self.requests()
        for request in given_up:
            self.cancel(request)
        self.running = 0
        self._busy_until_s = None
        return given_up

    def next_batch(self, now_s: float) -> Batch | None:
        """Start a batch if a device is free and the policy starts one now."""
        # A device that let requests wait for others answers all of them, even if a timer was late.
        let_wait, self.wake_at_s = self.wake_at_s is not None, None
        while self.running < self.devices and (self._queue.rows or self._bisection):
            policy = self.policy(now_s)
            size, reason = self._ordinary_batch(now_s, policy)
            under_test = 0
            if self._failed.can_test and not (size and self._failed.queue_is_next):
                slices, under_test = self._failed.take_test(
                    now_s, self._largest(policy), self.limits, self._take, self._miss_deadline
                )
                reason = StartReason.SEARCH
            elif size:
                self._failed.queue_is_next = False
                # The whole queue decides when; the oldest request's kind, what the batch holds.
                kind = self._queue.first_kind(1e-3 * self.limits.head_start_ms)
                size = min(size, self._queue.rows_of(kind))
                done_s = now_s + 1e-3 * self.limits.batch_latency_ms(size)
                slices = self._take(size, -math.inf if let_wait else done_s, kind)
            else:
                if self._queue.rows:
                    self.wake_at_s = self._decide_again_s(now_s, policy)
                    self._queue.let_wait_until_s = now_s
                return None
            if slices:
                # Smaller than decided if deadlines were missed; the rest still goes now.
                size = sum([part.stop - part.start for part in slices])
                self.running += 1
                if self.running >= self.devices:
                    self._busy_until_s = now_s + 1e-3 * self.limits.batch_latency_ms(size)
                return Batch(tuple(slices), size, reason, under_test)
        return None

    def _ordinary_batch(self, now_s: float, policy: BatchingPolicy) -> tuple[int, StartReason]:
        """Return how many queued rows start now, and why."""
        queued, largest = self._queue.rows, self._largest(policy)
        size = policy.batch_size(queued) if queued else 0
        if largest < policy.max_batch_size:
            size = largest if queued >= largest else size
        if size:
            return size, StartReason.FULL if size == largest else StartReason.LIMIT
        # Rows of a failed batch have waited before: they do not wait for others again.
        again = self._queue.has_returned_slices
        if queued and (again or self._draining or now_s >= self._latest_start_s(policy)):
            size = min(queued, largest)
        if self._draining:
            return size, StartReason.DRAIN
        return size, StartReason.AGAIN if again else StartReason.MAX_WAIT

    def _largest(self, policy: BatchingPolicy) -> int:
        """Return the largest batch: limits take effect at once, policies once they are solved."""
        return min(policy.max_batch_size, self.limits.max_batch_size)

    def _decide_again_s(self, now_s: float, policy: BatchingPolicy) -> float:
        """Return when a wait ends, or when the arrival rate has fallen so far as to end it."""
        latest_s = self._latest_start_s(policy)
        lowest_per_s = self.table.cell_start_per_s(self._rate_per_device(now_s))
        if not lowest_per_s:
            return latest_s
        return min(latest_s, self.arrival_rate.falls_below_s(max(1, self.devices) * lowest_per_s))

    def _take(self, size: int, done_s: float, kind: Hashable) -> list[Slice]:
        limits = self.limits
        return self._queue.take(
            size,
            done_s,
            done_s - 1e-3 * limits.answer_within_ms,
            1e-3 * limits.head_start_ms,
            self._miss_deadline,
            kind,
        )

    def longest_wait_ms(self, policy: BatchingPolicy) -> float:
        """Return how long a free device lets the oldest request wait at most, under `policy`."""
        max_age_ms = self.limits.max_age_ms
        if policy.max_wait_ms is not None:
            max_age_ms = min(max_age_ms, policy.max_wait_ms)
        return max_age_ms * self.wait_factor

    def _latest_start_s(self, policy: BatchingPolicy) -> float:
        wait_ms = self.longest_wait_ms(policy)
        max_age_ms = self.limits.max_age_ms * self.wait_factor
        largest = self._largest(policy)
        return latest_start_s(self._queue, self.limits, wait_ms, max_age_ms, largest)
