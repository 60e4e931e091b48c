import math
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.batcher.core import BatcherCore
from policy.batcher.limits import Limits
from policy.batcher.requests import Batch, FixedPolicy, Refusal, Request
from policy.batching_policy import BatchingPolicy
from tests.support.batching.batcher_core import Run, contents

LATENCY_MS = [20.0 + b for b in range(1, 9)]
LIMITS = Limits(
    max_age_ms=72.0,
    max_queue_rows=24,
    latency_ms=LATENCY_MS,
    head_start_ms=100.0,
    admit_within_ms=97.0,
    answer_within_ms=100.0,
)


def core_of(control_limit=1):
    return BatcherCore(FixedPolicy(BatchingPolicy.from_control_limit(control_limit, 8)), LIMITS)


def expected_s(batch: Batch):
    return 1e-3 * LATENCY_MS[batch.size - 1]


def fill(core: BatcherCore):
    """Let in requests of the lowest priority until there is no room; return how many wait."""
    core.arrive(0.0, Request(0.0, 1, "first"))
    core.next_batch(0.0)
    while core.arrive(0.0, Request(0.0, 1, "low")) is None:
        pass
    return core.queue_length


def test_a_high_priority_takes_the_place_of_the_last_low_one():
    core = core_of()
    waiting = fill(core)
    assert not core.has_room(1, 0.0)
    assert core.has_room(1, 0.0, priority=1)
    assert core.arrive(0.0, Request(0.0, 1, "high", priority=1)) is None
    assert [request.content for request in core.given_up] == ["low"]
    assert core.given_up[0].cancelled
    assert core.queue_length == waiting
    assert core.refusal(1, 0.0, 0.0) is Refusal.FULL
    core.device_free()
    assert contents(core.next_batch(0.021))[:2] == ["high", "low"]


def test_what_has_begun_or_never_fits_is_not_displaced():
    core = core_of()
    core.arrive(0.0, Request(0.0, 1, "first"))
    core.next_batch(0.0)
    assert core.arrive(0.0, Request(0.0, 60, "long")) is None
    assert core.arrive(0.0, Request(0.0, 1, "high", priority=1)) is None
    assert core.given_up == []
    core.device_free()
    assert contents(core.next_batch(0.021)) == ["high", "long"]
    assert core.arrive(0.03, Request(0.03, 16, "high", priority=1)) is None
    assert core.given_up == []


#: Control limit, kinds, load, and share of high priority.
systems = st.tuples(
    st.sampled_from([1, 2, 8]),
    st.sampled_from([[None], [*"ab"], [*"abc"]]),
    st.floats(0.02, 0.3) | st.floats(0.9, 2.0),
    st.sampled_from([0.0, 0.2, 0.5]),
)


@given(systems, st.integers(0, 2**32 - 1))
def test_what_is_let_in_is_answered_in_time_or_given_up_in_time_for_others_to_try(system, seed):
    """Nearly half of those let in at twice the load were dropped as their batch formed.

    And a nearly idle device waited for more rows until there was time for one batch, but each kind
    needs its own; and for a batch that a higher priority of another kind then took.
    """
    control_limit, kinds, load, high = system
    core, random = core_of(control_limit), np.random.default_rng(seed)
    times_s = np.cumsum(random.exponential(1e-3 * LATENCY_MS[-1] / 8 / load, 400)).tolist()
    priorities = (random.random(400) < high).astype(int).tolist()
    kind_of = random.integers(len(kinds), size=400).tolist()
    run = Run(core, batch_s=expected_s)
    run.coming += [
        Request(time_s, 1, priority=priority, kind=kinds[kind])
        for time_s, priority, kind in zip(times_s, priorities, kind_of, strict=True)
    ]
    given_up = 0
    while run.step():
        for request in core.given_up:
            assert request.priority == 0
            assert core.refusal(1, run.now_s, request.arrival_s) is Refusal.FULL
        given_up += len(core.given_up)
        core.given_up.clear()
        assert core.deadline_missed == []
    assert max(run.responses_s) <= 0.1 + 1e-9
    assert len(run.answered) + len(run.refused) + given_up == 400
    if high * load < 0.6 and len(kinds) == 1:
        assert not any(one.priority for one in run.refused), "there is room for high priorities"


@settings(max_examples=30)
@given(systems, st.sampled_from([2, 12, 24]), st.integers(0, 2**32 - 1))
def test_what_takes_several_batches_is_in_time_whatever_overtakes_it(system, most_rows, seed):
    """One in sixty was late, as higher priorities overtook the rest of it."""
    control_limit, kinds, load, high = system
    core, random = core_of(control_limit), np.random.default_rng(seed)
    rows = random.integers(1, most_rows + 1, size=300)
    gap_s = 1e-3 * LATENCY_MS[-1] / 8 * rows.mean() / load
    times_s = np.cumsum(random.exponential(gap_s, 300)).tolist()
    priorities = (random.random(300) < high).astype(int).tolist()
    kind_of = random.integers(len(kinds), size=300).tolist()
    run = Run(core, batch_s=expected_s)
    run.coming += [
        Request(time_s, count, priority=priority, kind=kinds[kind])
        for time_s, count, priority, kind in zip(
            times_s, rows.tolist(), priorities, kind_of, strict=True
        )
    ]
    run.run()
    assert max(run.responses_s) <= 0.1 + 1e-9
    assert not any(one.rows_started for one in (*core.given_up, *core.deadline_missed))


def test_a_request_that_has_begun_keeps_its_turn_if_it_can_be_in_time():
    for rows, first in ((20, "long"), (60, "high")):
        core = core_of()
        core.arrive(0.0, Request(0.0, rows, "long"))
        core.next_batch(0.0)
        assert core.arrive(0.001, Request(0.001, 1, "high", priority=1)) is None
        core.device_free()
        assert contents(core.next_batch(0.028))[0] == first


@settings(max_examples=30)
@given(
    st.sampled_from([1, 2, 8]),
    st.sampled_from([[None], [*"ab"], [*"abc"]]),
    st.floats(0.02, 2.0),
    st.integers(0, 2**32 - 1),
)
def test_own_deadlines_are_kept_once_admitted_though_kinds_share_no_batch(
    control_limit, kinds, load, seed
):
    """An eighth of them were dropped: the batches of other kinds were not counted."""
    core, random = core_of(control_limit), np.random.default_rng(seed)
    times_s = np.cumsum(random.exponential(1e-3 * LATENCY_MS[-1] / 8 / load, 300)).tolist()
    within_s = np.where(random.random(300) < 0.5, random.uniform(0.03, 0.09, 300), np.inf)
    kind_of = random.integers(len(kinds), size=300).tolist()
    run = Run(core, batch_s=expected_s)
    run.coming += [
        Request(time_s, 1, deadline_s=time_s + left_s, kind=kinds[kind])
        for time_s, left_s, kind in zip(times_s, within_s.tolist(), kind_of, strict=True)
    ]
    run.run()
    assert core.deadline_missed == core.given_up == []
    assert len(run.answered) + len(run.refused) == 300
    assert run.answered


@given(
    st.lists(st.floats(0.0, 0.03), min_size=1, max_size=60),
    st.floats(0.0, 1.0),
    st.none() | st.floats(0.05, 0.2),
)
def test_behind_an_overdue_batch_every_request_is_refused_in_time_to_be_tried_elsewhere(
    gaps_s, batch_s, deadline_s
):
    """A batch of 5 s was taken to end now: it drew requests that learned of it after 5 s."""
    core, longest_s = core_of(), math.inf if deadline_s is None else deadline_s
    core.arrive(0.0, Request(0.0, 1, "long"))
    waiting = [Request(at, 1, deadline_s=at + longest_s) for at in np.cumsum(gaps_s).tolist()]
    run = Run(core, deque(waiting), batch_s=lambda _: batch_s)
    while run.step() and not run.answered:
        for request in core.given_up:
            # A free device has time for it, and for the batch before it.
            alone_s = run.now_s if deadline_s else run.now_s + 2e-3 * LATENCY_MS[0]
            assert alone_s < min(request.arrival_s + 0.1, request.deadline_s)
        core.given_up.clear()
        for request in waiting[: len(waiting) - len(run.coming)]:
            left_s = min(request.arrival_s + 0.1, request.deadline_s) - run.now_s
            assert request.cancelled or request in run.refused or left_s > 0
    assert core.give_up_late(run.now_s) is None
    assert not core.is_overdue(run.now_s)


def test_a_batch_in_time_gives_up_nothing_and_one_that_is_not_lets_nothing_in():
    core = core_of()
    waiting = fill(core)
    assert core.give_up_late(0.021) == pytest.approx(0.021 + 0.014 + 0.001)
    assert (core.given_up, core.queue_length) == ([], waiting)
    assert not any(core.is_overdue(now_s) for now_s in (0.0, 0.021, 0.0585))
    assert core.is_overdue(0.06)
    assert core.arrive(0.06, Request(0.06, 1)) is Refusal.FULL
    core.device_free()
    assert core.next_batch(0.06) is not None
