"""The core of one stage: a queue, its workers, and when the next batch starts.

Like `policy.batcher.core`, it takes events and returns batches, and knows no clock, no threads
and no processes; the live pipeline and the simulation drive the same object. It differs in what a
stage needs: several workers take batches from one queue, each item is one row, and the deadline
leaves time for the stages to come.

An item that makes its batch fail is found by halving the batch until it fails alone. After the loss
of a worker each item of its batch is run once more, alone: an item that kills its worker then takes
no other with it, and is not run a third time.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from deployments.pipelines.errors import WorkerLostError
from deployments.pipelines.items import RETRY, BatchFailure, Item, ItemFailure, Outcome, WorkerLoss
from policy.batcher.arrival_rate import ArrivalRate
from policy.batcher.requests import PolicySource
from policy.batching_policy import BatchingPolicy

# To meet a deadline, a batch starts earlier than it must by this much, or by this share of its
# latency if that is more: timers fire late, and batch latency varies.
_SLACK_MS = 2.0
_SLACK_SHARE = 0.1
# The longest wait, unless a policy has one or a full batch takes longer.
_LONGEST_WAIT_MS = 1000.0
# A timer that fires this much early still ends the wait.
_EARLY_S = 1e-6
_RATE_WINDOW_S = 5.0
# What other pipelines take of the workers is averaged over about this time.
_SHARE_WINDOW_S = 1.0
# Weight of the newest batch in the measured latency.
_NEWEST = 0.1
# A measured latency is forgotten after this time without a batch. Otherwise one slow batch could
# refuse all requests for ever: there would be no other batch to correct it.
_MEMORY_S = 1.0
# The queue is rebuilt without its abandoned items once these are more than the others, and this.
_ABANDONED = 64


def longest_wait_ms(policy: BatchingPolicy, full_batch_ms: float) -> float:
    """Return how long an item waits at most before a free worker takes it.

    A policy without a longest wait gets one: no further item may come, and where there is no
    deadline nothing else would start the last ones.
    """
    if policy.max_wait_ms is None:
        return max(_LONGEST_WAIT_MS, full_batch_ms)
    return policy.max_wait_ms


@dataclass(eq=False, slots=True)
class StageBatch:
    """One batch for a worker.

    Attributes
    ----------
    items : list of Item
        Its contents.
    started_s : float
        When it was formed.
    """

    items: list[Item]
    started_s: float


class StageCore:
    """The queue of one stage, and the decisions about its batches.

    After every event the caller asks `next_batch` until it returns None, and answers the items in
    `too_late`.

    Parameters
    ----------
    name : str
        The stage's name.
    policy : BatchingPolicy or PolicySource
        When a free worker starts a batch. A table is looked up at the arrival rate per worker.
    workers : int
        Workers that can run a batch; the attribute may be changed.
    latency_ms : sequence of float, optional
        Batch latency; entry ``b - 1`` is for batch size ``b``. If omitted, it is measured.

    Attributes
    ----------
    busy : int
        Workers with a batch.
    waiting : int
        Items that wait.
    in_service : int
        Items that are with a worker.
    rest_ms : float
        The least time that the later stages need; the caller sets it.
    wake_at_s : float or None
        When to ask again, if nothing happens before.
    too_late : list of Item
        Items dropped because they could not be finished in time; the caller empties the list.
    batches, items, batched, completed, deaths : int
        Batches started, items that arrived, items in batches that started, items that were
        computed, workers lost.
    busy_s, believed_s : float
        Time of all batches together, and the time that they were believed to take.
    lost : str or None
        Why the stage has no worker and cannot start one.
    """

    def __init__(
        self,
        name: str,
        policy: "BatchingPolicy | PolicySource",
        workers: int,
        latency_ms: Sequence[float] | None = None,
    ) -> None:
        self.name = name
        self.use(policy)
        self.busy = self.waiting = self.in_service = 0
        self.rest_ms = 0.0
        self.wake_at_s: float | None = None
        self.too_late: list[Item] = []
        self.batches = self.items = self.batched = self.completed = self.deaths = 0
        self.busy_s = self.believed_s = 0.0
        self.lost: str | None = None
        self.workers = workers
        self._taken, self._mean_taken, self._taken_s = 0, 0.0, -math.inf
        self._stated_ms = None if latency_ms is None else tuple(latency_ms)
        self._batch_ms = self._item_ms = 0.0
        self._measured_s = -math.inf
        self._queue: deque[Item] = deque()
        self._retries: deque[list[Item]] = deque()

    def use(self, policy: "BatchingPolicy | PolicySource") -> None:
        """Replace the policy; the queue stays."""
        self._fixed = policy if isinstance(policy, BatchingPolicy) else None
        self._table = None if isinstance(policy, BatchingPolicy) else policy
        self._rate = ArrivalRate(_RATE_WINDOW_S) if self._table is not None else None

    def policy(self, now_s: float) -> BatchingPolicy:
        """Return the policy in force."""
        if self._table is None or self._rate is None:
            assert self._fixed is not None
            return self._fixed
        return self._table.lookup(self._rate.per_s(now_s) / max(1, self.workers))

    def latency_ms(self, size: int) -> float:
        """Return how long a batch takes: as stated, or as the latest ones took, or 0 if unknown."""
        stated = self._stated_ms
        return self._batch_ms if stated is None else stated[min(size, len(stated)) - 1]

    def state_latency(self, latency_ms: Sequence[float]) -> None:
        """State the latency by batch size, instead of measuring it."""
        self._stated_ms = tuple(latency_ms)

    def share(self, now_s: float, taken: int) -> None:
        """Note how many of the workers run batches of another pipeline now."""
        if taken or self._taken or self._mean_taken:
            faded = math.exp((self._taken_s - now_s) / _SHARE_WINDOW_S)
            self._mean_taken = self._taken + faded * (self._mean_taken - self._taken)
            self._taken, self._taken_s = taken, now_s

    @property
    def own_workers(self) -> float:
        """The workers, less those that other pipelines had on average; at least a tenth of them."""
        workers = self.workers or 1
        return max(0.1 * workers, workers - self._mean_taken)

    @property
    def item_ms(self) -> float:
        """The least time that one worker needs for one item, in full batches; 0 if unknown."""
        if self._stated_ms is None:
            return self._item_ms
        return min(ms / size for size, ms in enumerate(self._stated_ms, 1))

    def arrive(self, now_s: float, item: Item) -> None:
        """Queue an item."""
        item.arrival_s = now_s
        item.waits_in = self
        item.deaths = 0
        self.items += 1
        self.waiting += 1
        self._queue.append(item)
        if self._rate is not None:
            self._rate.count(now_s)

    def abandon(self, item: Item) -> None:
        """Forget a waiting item whose request is done."""
        item.waits_in = None
        self.waiting -= 1
        if len(self._queue) > 2 * self.waiting + _ABANDONED:
            self._queue = deque(kept for kept in self._queue if kept.waits_in is self)

    def next_batch(self, now_s: float) -> StageBatch | None:
        """Start a batch if a worker is free and the policy starts one now.

        Returns
        -------
        StageBatch or None
            None: wait for the next event, or until `wake_at_s` if that is not None.
        """
        self.wake_at_s = None
        while self.waiting and self.busy < self.workers - self._taken:
            if self._retries:
                items = self._in_time(self._retries.popleft(), now_s)
            else:
                size = self._size(now_s)
                if not size:
                    return None
                items = self._take(size, now_s)
            if items:
                self.busy += 1
                self.batches += 1
                self.batched += len(items)
                self.in_service += len(items)
                return StageBatch(items, now_s)
        return None

    def _size(self, now_s: float) -> int:
        """Return how many items to start now; if none, set `wake_at_s`."""
        policy = self.policy(now_s)
        size = policy.batch_size(self.waiting)
        if size:
            return size
        while self._queue[0].waits_in is not self:
            self._queue.popleft()
        longest_ms = longest_wait_ms(policy, self.latency_ms(policy.max_batch_size))
        due_s = self._queue[0].arrival_s + 1e-3 * longest_ms
        # While the policy waits the queue is shorter than its control limit, so this is short.
        deadline_s = min([item.flow.deadline_s for item in self._queue])
        if deadline_s < math.inf:
            latency_ms = self.latency_ms(self.waiting)
            slack_ms = max(_SLACK_MS, _SLACK_SHARE * latency_ms)
            due_s = min(due_s, deadline_s - 1e-3 * (latency_ms + self.rest_ms + slack_ms))
        if now_s >= due_s - _EARLY_S:
            return min(self.waiting, policy.max_batch_size)
        self.wake_at_s = due_s
        return 0

    def _take(self, size: int, now_s: float) -> list[Item]:
        done_s = now_s + 1e-3 * (self.latency_ms(size) + self.rest_ms)
        queue = self._queue
        items: list[Item] = []
        while queue and len(items) < size:
            item = queue.popleft()
            if item.waits_in is not self:
                continue
            item.waits_in = None
            self.waiting -= 1
            if item.flow.deadline_s < done_s:
                self.too_late.append(item)
            else:
                items.append(item)
        return items

    def _in_time(self, items: list[Item], now_s: float) -> list[Item]:
        """Return those of a group to run again that still wait for it."""
        done_s = now_s + 1e-3 * (self.latency_ms(len(items)) + self.rest_ms)
        kept: list[Item] = []
        for item in items:
            if item.waits_in is not self:
                continue
            item.waits_in = None
            self.waiting -= 1
            (self.too_late if item.flow.deadline_s < done_s else kept).append(item)
        return kept

    def batch_ended(
        self, now_s: float, batch: StageBatch, outcome: Outcome
    ) -> list[tuple[Item, object]]:
        """Record the end of a batch.

        Returns
        -------
        list of (Item, object)
            Each item that has its outcome, a result or an `ItemFailure`. The others wait for
            another run. Items of requests that are done are left out.
        """
        self.busy -= 1
        self.in_service -= len(batch.items)
        self.busy_s += now_s - batch.started_s
        self.believed_s += 1e-3 * self.latency_ms(len(batch.items))
        if isinstance(outcome, WorkerLoss):
            return self._worker_lost(batch, outcome.reason)
        if isinstance(outcome, BatchFailure):
            return self._batch_failed(batch, outcome)
        self._measure(now_s, 1e3 * (now_s - batch.started_s), len(batch.items))
        ended = []
        again = []
        for item, result in zip(batch.items, outcome, strict=True):
            if item.flow.done:
                continue
            if result is RETRY:
                again.append(item)
            else:
                ended.append((item, result))
        self.completed += len(batch.items) - len(again)
        self._retry(again)
        return ended

    def _batch_failed(self, batch: StageBatch, failure: BatchFailure) -> list[tuple[Item, object]]:
        items = [item for item in batch.items if not item.flow.done]
        if failure.whole or len(batch.items) == 1:
            return [(item, ItemFailure(failure.error)) for item in items]
        half = len(items) // 2
        self._retry(items[:half])
        self._retry(items[half:])
        return []

    def _worker_lost(self, batch: StageBatch, reason: str) -> list[tuple[Item, object]]:
        self.deaths += 1
        ended: list[tuple[Item, object]] = []
        for item in batch.items:
            item.deaths += 1
            if item.flow.done:
                continue
            if item.deaths > 1:
                ended.append((item, ItemFailure(WorkerLostError(reason))))
            else:
                self._retry([item])
        return ended

    def _retry(self, items: list[Item]) -> None:
        if items:
            for item in items:
                item.waits_in = self
            self.waiting += len(items)
            self._retries.append(items)

    def give_up(self) -> list[Item]:
        """Empty the queue, and return what waited."""
        waiting = [*self._queue, *(item for group in self._retries for item in group)]
        kept = [item for item in waiting if item.waits_in is self]
        for item in kept:
            item.waits_in = None
        self._queue.clear()
        self._retries.clear()
        self.waiting = 0
        return kept

    def refresh(self, now_s: float) -> None:
        """Forget a measured latency that is old, and follow what other pipelines take."""
        self.share(now_s, self._taken)
        if now_s - self._measured_s > _MEMORY_S:
            self._batch_ms = self._item_ms = 0.0

    def _measure(self, now_s: float, duration_ms: float, size: int) -> None:
        if self._stated_ms is not None:
            return
        self._measured_s = now_s
        share = _NEWEST if self._batch_ms else 1.0
        self._batch_ms += share * (duration_ms - self._batch_ms)
        self._item_ms += share * (duration_ms / size - self._item_ms)
