"""Batcher cores under a fixed policy, and devices for them on virtual time."""

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from policy.batcher.core import BatcherCore
from policy.batcher.limits import Limits
from policy.batcher.requests import Batch, FixedPolicy, Request, Slice, StartReason
from policy.batching_policy import BatchingPolicy


def make_core(
    control_limit: int = 1,
    max_batch_size: int = 4,
    max_wait_ms: float | None = None,
    max_age_ms: float = 1000.0,
    max_queue_rows: int = 100,
    batch_ms: float = 10.0,
    head_start_ms: float = 0.0,
    admit_within_ms: float = math.inf,
) -> BatcherCore:
    """Return a core whose batches of any size are expected to take `batch_ms`."""
    policy = BatchingPolicy.from_control_limit(control_limit, max_batch_size, max_wait_ms)
    latency_ms = [batch_ms] * max_batch_size
    limits = Limits(max_age_ms, max_queue_rows, latency_ms, head_start_ms, admit_within_ms)
    return BatcherCore(FixedPolicy(policy), limits)


def started(core: BatcherCore, now_s: float) -> tuple[int, StartReason]:
    """Return the size of the batch that starts, and why."""
    batch = core.next_batch(now_s)
    return batch.size, batch.reason


def contents(batch: Batch | None) -> list[object]:
    """Return the contents of the requests in a batch, a slice each."""
    return names(batch.slices)


def names(slices: Iterable[Slice]) -> list[object]:
    return [part.request.content for part in slices]


@dataclass
class Run:
    """Devices that run the batches of a core, as requests come, on virtual time.

    Each batch with a request whose content is in `poison` fails, or those of which `fails` is true;
    it may name the culprits. Timers are late by `timer_delay_s`.
    """

    core: BatcherCore
    coming: deque[Request] = field(default_factory=deque)
    poison: Collection[object] = ()
    names_culprits: bool = False
    fails: Callable[[Batch], bool] | None = None
    batch_s: Callable[[Batch], float] = field(default=lambda _: 0.01)
    timer_delay_s: float = 0.0
    now_s: float = 0.0
    refused: list[Request] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    failed: list[object] = field(default_factory=list)
    answered: list[Slice] = field(default_factory=list)
    responses_s: list[float] = field(default_factory=list)
    running: list[tuple[float, Batch]] = field(default_factory=list)
    _look_s: float | None = None

    def start(self) -> None:
        while (batch := self.core.next_batch(self.now_s)) is not None:
            assert batch.size == sum(part.rows for part in batch.slices) > 0
            assert len({part.request.kind for part in batch.slices}) == 1
            assert not any(part.request.cancelled for part in batch.slices)
            self.batches.append(batch)
            self.running.append((self.now_s + self.batch_s(batch), batch))
            self._look_s = self.core.give_up_late(self.now_s)

    def advance(self) -> bool:
        """Go on to the next end of a batch, arrival or timer; return False if there is none."""
        timers_s = [self.core.wake_at_s, self._look_s]
        end_s = min((end_s for end_s, _ in self.running), default=math.inf)
        arrival_s = self.coming[0].arrival_s if self.coming else math.inf
        wake_s, look_s = (math.inf if one is None else one for one in timers_s)
        next_s = min(end_s, arrival_s, wake_s + self.timer_delay_s, look_s)
        if next_s == math.inf:
            assert not self.core.queue_length, "a free device with a queue must have a time to wake"
            return False
        self.now_s = max(self.now_s, next_s)
        if next_s == end_s:
            self._end(min(self.running, key=lambda one: one[0]))
        elif next_s == arrival_s:
            request = self.coming.popleft()
            if self.core.arrive(self.now_s, request) is not None:
                self.refused.append(request)
        elif next_s == look_s:
            self._look_s = self.core.give_up_late(self.now_s)
        return True

    def step(self) -> bool:
        self.start()
        return self.advance()

    def run(self) -> None:
        while self.step():
            assert len(self.batches) < 1_000_000, "the batches must end"

    def runs(self) -> Counter[object]:
        """Return in how many batches each request was."""
        return Counter(name for batch in self.batches for name in set(contents(batch)))

    def has_failed(self, batch: Batch) -> bool:
        if self.fails is not None:
            return self.fails(batch)
        return not set(self.poison).isdisjoint(contents(batch))

    def _end(self, running: tuple[float, Batch]) -> None:
        self.running.remove(running)
        self._look_s = None
        batch = running[1]
        if not self.has_failed(batch):
            self.core.device_free(batch)
            self.answered += batch.slices
            self.responses_s += [self.now_s - part.request.arrival_s for part in batch.slices]
            return
        inside = contents(batch)
        places = [place for place, name in enumerate(inside) if name in self.poison]
        blamed = places if self.names_culprits else ()
        self.failed += [inside[place] for place in self.core.device_failed(batch, blamed)]
