"""Requests of several priorities under overload, and behind an overdue batch; on virtual time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.batcher.core import BatcherCore
from policy.batcher.limits import Limits
from policy.batcher.requests import FixedPolicy, Refusal, Request
from policy.batching_policy import BatchingPolicy
from tests.support.batching.batcher_core import contents

LATENCY_MS = [20.0 + b for b in range(1, 9)]
LIMITS = Limits(
    max_age_ms=72.0,
    max_queue_rows=24,
    latency_ms=LATENCY_MS,
    head_start_ms=100.0,
    admit_within_ms=97.0,
    answer_within_ms=100.0,
)


def core_of(control_limit: int = 1) -> BatcherCore:
    return BatcherCore(FixedPolicy(BatchingPolicy.from_control_limit(control_limit, 8)), LIMITS)


def fill(core: BatcherCore) -> int:
    """Let in requests of the lowest priority until there is no room; return how many wait."""
    core.arrive(0.0, Request(0.0, 1, "first"))
    core.next_batch(0.0)
    while core.arrive(0.0, Request(0.0, 1, "low")) is None:
        pass
    return core.queue_length


def test_a_high_priority_takes_the_place_of_the_last_low_one() -> None:
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


def test_what_has_begun_or_never_fits_is_not_displaced() -> None:
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


@pytest.mark.parametrize("kinds", [[None], ["a", "b"]])
@pytest.mark.parametrize("high", [0.2, 0.5])
@pytest.mark.parametrize("load", [0.9, 1.1, 2.0])
def test_no_request_is_let_in_and_then_answered_too_late_for_others_to_try(
    kinds: list[str | None], high: float, load: float
) -> None:
    """Nearly half of those let in at twice the load were dropped as their batch formed."""
    core = core_of()
    random = np.random.default_rng(1)
    arrivals_s = np.cumsum(random.exponential(1e-3 * LATENCY_MS[-1] / 8 / load, 2000)).tolist()
    free_s, displaced, refused = math.inf, 0, [0, 0]
    while arrivals_s or free_s < math.inf:
        now_s = min(free_s, arrivals_s[0] if arrivals_s else math.inf)
        if now_s == free_s:
            core.device_free()
            free_s = math.inf
        else:
            priority = int(random.random() < high)
            kind = kinds[int(random.integers(len(kinds)))]
            request = Request(arrivals_s.pop(0), 1, priority=priority, kind=kind)
            refused[priority] += core.arrive(now_s, request) is not None
        for request in core.given_up:
            assert request.priority == 0
            assert core.refusal(1, now_s, request.arrival_s) is Refusal.FULL
        displaced += len(core.given_up)
        core.given_up.clear()
        if batch := core.next_batch(now_s):
            free_s = now_s + 1e-3 * LATENCY_MS[batch.size - 1]
        assert core.deadline_missed == []
    assert displaced
    if high * load < 1.0 and len(kinds) == 1:
        assert not refused[1], "there is room for those of high priority"


@given(
    st.lists(st.floats(0.0, 0.03), min_size=1, max_size=60),
    st.floats(0.0, 1.0),
    st.none() | st.floats(0.05, 0.2),
)
def test_behind_an_overdue_batch_every_request_is_refused_in_time_to_be_tried_elsewhere(
    gaps_s: list[float], batch_s: float, deadline_s: float | None
) -> None:
    """A batch of 5 s was taken to end now: it drew requests that learned of it after 5 s."""
    core = core_of()
    arrivals_s = np.cumsum(gaps_s).tolist()
    core.arrive(0.0, Request(0.0, 1, "long"))
    assert core.next_batch(0.0) is not None
    look_s = core.give_up_late(0.0)
    waiting: list[Request] = []
    while True:
        assert look_s is not None
        now_s = min(look_s, arrivals_s[0] if arrivals_s else math.inf)
        if now_s >= batch_s:
            break
        if now_s == look_s:
            look_s = core.give_up_late(now_s)
        else:
            due_s = math.inf if deadline_s is None else now_s + deadline_s
            request = Request(arrivals_s.pop(0), 1, deadline_s=due_s)
            refused = core.arrive(now_s, request) is not None
            assert refused or not core.is_overdue(now_s)
            waiting += [] if refused else [request]
        for request in core.given_up:
            # A free device has time for it, and for the batch before it.
            alone_s = now_s if deadline_s else now_s + 2e-3 * LATENCY_MS[0]
            assert alone_s < min(request.arrival_s + 0.1, request.deadline_s)
        core.given_up.clear()
        for request in waiting:
            assert request.cancelled or now_s < min(request.arrival_s + 0.1, request.deadline_s)
    core.device_free()
    assert core.give_up_late(now_s) is None
    assert not core.is_overdue(now_s)


def test_a_batch_in_time_gives_up_nothing_and_one_that_is_not_lets_nothing_in() -> None:
    core = core_of()
    waiting = fill(core)
    assert core.give_up_late(0.021) == pytest.approx(0.021 + 0.014 + 0.001)
    assert (core.given_up, core.queue_length) == ([], waiting)
    assert not any(core.is_overdue(now_s) for now_s in (0.0, 0.021, 0.0585))
    assert core.is_overdue(0.06)
    assert core.arrive(0.06, Request(0.06, 1)) is Refusal.FULL
    core.device_free()
    assert core.next_batch(0.06) is not None
