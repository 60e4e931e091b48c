"""When batches start if rows of several kinds wait, on virtual time."""

import math

import numpy as np
import pytest

from policy.batcher.core import BatcherCore
from policy.batcher.limits import Limits
from policy.batcher.requests import FixedPolicy, Request
from policy.batching_policy import BatchingPolicy
from tests.support.batching.batcher_core import contents

LATENCY_MS = [20.0 + size for size in range(1, 9)]
LIMITS = Limits(
    max_age_ms=72.0,
    max_queue_rows=24,
    latency_ms=LATENCY_MS,
    head_start_ms=100.0,
    admit_within_ms=97.0,
    answer_within_ms=100.0,
)


def core_of(max_wait_ms: float | None = None) -> BatcherCore:
    policy = BatchingPolicy.from_control_limit(8, 8, max_wait_ms)
    return BatcherCore(FixedPolicy(policy), LIMITS)


def test_a_batch_leaves_those_of_the_kinds_behind_it_time() -> None:
    core = core_of()
    for number, kind in enumerate("aab"):
        core.arrive(0.001 * number, Request(0.001 * number, 1, kind, kind=kind))
    assert core.next_batch(0.002) is None
    # That of "b" starts 72 ms after it came, and that of "a", of two rows, takes 22 and 2 more.
    assert core.wake_at_s == pytest.approx(0.002 + 0.072 - 0.022 - 0.0022)
    assert contents(core.next_batch(core.wake_at_s)) == ["a", "a"]
    core.device_free()
    assert core.next_batch(0.0718) is None
    assert core.wake_at_s == pytest.approx(0.074)


def test_a_deadline_of_the_kind_behind_counts_the_batch_before_it() -> None:
    core = core_of()
    core.arrive(0.0, Request(0.0, 1, "a", kind="a"))
    core.arrive(0.0, Request(0.0, 1, "b", deadline_s=0.08, kind="b"))
    assert core.next_batch(0.0) is None
    assert core.wake_at_s == pytest.approx(0.08 - 2 * (0.021 + 0.0021))


@pytest.mark.parametrize("kinds", ["a", "ab", "abc"])
@pytest.mark.parametrize("rate_per_s", [10.0, 80.0])
def test_a_nearly_idle_device_answers_all_that_it_lets_in(kinds: str, rate_per_s: float) -> None:
    """It waited for more rows until there was time for one batch, but each kind needs its own."""
    core, random = core_of(), np.random.default_rng(1)
    arrivals_s = np.cumsum(random.exponential(1 / rate_per_s, 1000)).tolist()
    free_s = late_s = 0.0
    while arrivals_s or core.queue_length or core.device_busy:
        events_s = [*arrivals_s[:1], *([free_s] if core.device_busy else [])]
        now_s = min([*events_s, core.wake_at_s or math.inf])
        if core.device_busy and now_s == free_s:
            core.device_free()
        elif now_s in arrivals_s[:1]:
            kind = kinds[int(random.integers(len(kinds)))]
            core.arrive(now_s, Request(arrivals_s.pop(0), 1, kind=kind))
        if batch := core.next_batch(now_s):
            free_s = now_s + 1e-3 * LATENCY_MS[batch.size - 1]
            late_s = max(free_s - part.request.arrival_s for part in batch.slices) - 0.1
        assert core.deadline_missed == []
        assert late_s <= 1e-9
