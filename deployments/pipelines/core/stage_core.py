"""The core of one stage: the batcher of `policy.batcher.core` for the stage's workers.

Each item is a request of one row whose deadline leaves time for the later stages. After the loss of
a worker each item of its batch is run once more, alone: an item that kills its worker then takes no
other with it, and is not run a third time.
"""

import math
import sys
from collections.abc import Sequence

from deployments.pipelines.core.errors import WorkerLostError
from deployments.pipelines.core.items import (
    RETRY,
    BatchFailure,
    Item,
    ItemFailure,
    Outcome,
    StageBatch,
    WorkerLoss,
)
from deployments.pipelines.core.steps import Stage
from policy.batcher.core import BatcherCore
from policy.batcher.limits import Limits
from policy.batcher.requests import FixedPolicy, PolicySource, Request
from policy.batching_policy import BatchingPolicy

# Default maximum wait, unless a policy has one or a full batch takes longer.
_LONGEST_WAIT_MS = 1000.0
_RATE_WINDOW_S = 5.0
# Weight of the newest batch in the measured latency.
_NEWEST = 0.1
# A measured latency expires after this time without a batch. Otherwise one slow batch could refuse
# all requests for ever, because no other batch would correct it.
_MEMORY_S = 1.0


def longest_wait_ms(policy: BatchingPolicy, full_batch_ms: float) -> float:
    if policy.max_wait_ms is None:
        # No further item may come, and without a deadline nothing else would start the last ones.
        return max(_LONGEST_WAIT_MS, full_batch_ms)
    return policy.max_wait_ms


class StageCore:
    """The queue of one stage, and the decisions about its batches.

    After every event the caller asks `next_batch` until it returns None, and answers the items of
    `take_late`. It sets `workers`, and `rest_ms`, the time that the later stages usually need.
    A policy table is looked up at the arrival rate per worker. Without `latency_ms`, by batch size
    from 1, it is measured. `item_ms` is the least time of one worker for an item, or 0. `missed`
    counts the requests refused at the entry because of this stage, or late at it; `expected_s` is
    the time that the batches were believed to take. `lost` is why no worker can be started.
    """

    def __init__(
        self,
        name: str,
        policy: "BatchingPolicy | PolicySource",
        workers: int,
        latency_ms: Sequence[float] | None = None,
    ) -> None:
        self.name, self.workers = name, workers
        self.in_service = 0
        self.rest_ms = 0.0
        self.batches = self.items = self.batched = self.completed = self.deaths = self.missed = 0
        self.busy_s = self.expected_s = self.item_ms = 0.0
        self.lost: str | None = None
        self._noted, self._usual_size = (0, 0), 1
        self._stated_ms = None if latency_ms is None else tuple(latency_ms)
        self._batch_ms, self._measured_s = 0.0, -math.inf
        self.policies = _source(policy)
        self._batcher = BatcherCore(self.policies, self._limits(), _RATE_WINDOW_S, workers)

    def use(self, policy: "BatchingPolicy | PolicySource") -> None:
        self.policies = _source(policy)
        self._batcher.use(self.policies, self._limits())

    def state_latency(self, latency_ms: Sequence[float]) -> None:
        self._stated_ms = tuple(latency_ms)
        self._batcher.use(self.policies, self._limits())

    def _limits(self) -> Limits:
        latency_ms, policy = self._stated_ms, self.policies.lookup(0.0)
        if latency_ms is None:
            latency_ms = (self._batch_ms,) * policy.max_batch_size
        else:
            self.item_ms = min([ms / size for size, ms in enumerate(latency_ms, 1)])
        wait_ms = max(policy.max_wait_ms or 0.0, _LONGEST_WAIT_MS, latency_ms[-1])
        return Limits(max_age_ms=wait_ms, max_queue_rows=sys.maxsize, latency_ms=latency_ms)

    def policy(self, now_s: float) -> BatchingPolicy:
        return self._batcher.policy(now_s)

    @property
    def usual_ms(self) -> float:
        """The time of a batch of the size that batches have had of late."""
        return self.latency_ms(self._usual_size)

    def latency_ms(self, size: int) -> float:
        return self._batcher.limits.batch_latency_ms(size)

    @property
    def full_batch(self) -> tuple[int, float]:
        """The size of a full batch and its time in ms."""
        latency_ms = self._batcher.limits.latency_ms
        return len(latency_ms), latency_ms[-1]

    @property
    def waiting(self) -> int:
        return self._batcher.queue_length

    @property
    def busy(self) -> int:
        return self._batcher.running

    @property
    def wake_at_s(self) -> float | None:
        return self._batcher.wake_at_s

    def arrive(self, now_s: float, item: Item) -> None:
        item.arrival_s, item.deaths = now_s, 0
        deadline_s = item.flow.deadline_s - 1e-3 * self.rest_ms
        item.queued = Request(now_s, 1, item, deadline_s)
        self.items += 1
        self._batcher.enqueue(now_s, item.queued)

    def abandon(self, item: Item) -> bool:
        """Drop an item whose request is done; return whether it was waiting."""
        queued = item.queued
        assert queued is not None
        if queued.rows_queued or queued.rows_suspected:
            self._batcher.cancel(queued)
            return True
        queued.cancelled = True
        return False

    def give_up(self) -> list[Item]:
        waiting = self._batcher.requests()
        for request in waiting:
            self._batcher.cancel(request)
        return [request.content for request in waiting]

    def next_batch(self, now_s: float) -> StageBatch | None:
        self._batcher.devices = self.workers
        batch = self._batcher.next_batch(now_s)
        if batch is None:
            return None
        self.batches += 1
        self.batched += batch.size
        self.in_service += batch.size
        return StageBatch([part.request.content for part in batch.slices], now_s, batch)

    def take_late(self) -> list[Item]:
        """Return the items dropped since the last call because they would be too late."""
        missed, self._batcher.deadline_missed = self._batcher.deadline_missed, []
        return [request.content for request in missed]

    def batch_ended(
        self, now_s: float, batch: StageBatch, outcome: Outcome
    ) -> list[tuple[Item, object]]:
        """Return the items with an outcome, and it; the others wait for another run."""
        self.in_service -= len(batch.items)
        self.busy_s += now_s - batch.started_s
        self.expected_s += 1e-3 * self.latency_ms(len(batch.items))
        if isinstance(outcome, WorkerLoss):
            ended = self._worker_lost(batch, outcome.reason)
        elif isinstance(outcome, BatchFailure):
            blamed = range(len(batch.items)) if outcome.whole else ()
            failure = ItemFailure(outcome.error)
            failed = self._batcher.device_failed(batch.batch, blamed)
            ended = [(batch.items[place], failure) for place in failed]
        else:
            self._measure(now_s, 1e3 * (now_s - batch.started_s), len(batch.items))
            ended = self._computed(batch, outcome)
        return [(item, result) for item, result in ended if not item.flow.done]

    def _computed(self, batch: StageBatch, outcome: list[object]) -> list[tuple[Item, object]]:
        places = [place for place, result in enumerate(outcome) if result is not RETRY]
        if len(places) == len(outcome):
            self._batcher.device_free(batch.batch)
        elif places:
            self._batcher.device_failed(batch.batch, places)
        else:
            self._batcher.recall(batch.batch, alone=())
        self.completed += len(places)
        return [(batch.items[place], outcome[place]) for place in places]

    def _worker_lost(self, batch: StageBatch, reason: str) -> list[tuple[Item, object]]:
        self.deaths += 1
        ended: list[tuple[Item, object]] = []
        again = []
        for place, item in enumerate(batch.items):
            item.deaths += 1
            if item.deaths > 1:
                ended.append((item, ItemFailure(WorkerLostError(reason))))
                self.abandon(item)
            else:
                again.append(place)
        self._batcher.recall(batch.batch, again)
        return ended

    def refresh(self, now_s: float) -> None:
        """Forget an old measured latency, and note the time of the batches since the last call."""
        batches, items = self.batches - self._noted[0], self.batched - self._noted[1]
        self._noted = self.batches, self.batched
        if batches:
            self._usual_size = math.ceil(items / batches)
        elif not self.in_service and not self.waiting:
            self._usual_size = 1
        if self._stated_ms is None and self._batch_ms:
            if now_s - self._measured_s > _MEMORY_S:
                self._batch_ms = self.item_ms = 0.0
            self._batcher.use(self.policies, self._limits())

    def _measure(self, now_s: float, duration_ms: float, size: int) -> None:
        if self._stated_ms is None:
            self._measured_s = now_s
            weight = _NEWEST if self._batch_ms else 1.0
            self._batch_ms += weight * (duration_ms - self._batch_ms)
            self.item_ms += weight * (duration_ms / size - self.item_ms)
            if weight == 1.0:
                self._batcher.use(self.policies, self._limits())


def _source(policy: "BatchingPolicy | PolicySource") -> PolicySource:
    return FixedPolicy(policy) if isinstance(policy, BatchingPolicy) else policy


def stage_core(stage: Stage, workers: int) -> StageCore:
    profile = stage.batch_profile
    latency_ms = None if profile is None else profile.latency_ms.tolist()
    return StageCore(stage.name, stage.first_policy(), workers, latency_ms)
