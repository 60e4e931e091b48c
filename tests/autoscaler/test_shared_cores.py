"""Whether replicas added on shared cores gain anything."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from autoscaler.shared_cores import CLEARED_AFTER_S, RETRY_S, WINDOW_S, SharedCoresHold
from tests.support.reporting_fleet import Fleet

START_S = 5
OFFERED_PER_S, LATE_PER_S = 1000.0, 50.0


def run(
    capacity_per_s: Callable[[int], float],
    *,
    offered_per_s: float = OFFERED_PER_S,
    shared: Callable[[int], bool] = lambda now_s: True,
    seconds: int = 300,
) -> list[int]:
    """Return the replicas in each second, of a fleet that orders one more whenever it may."""
    hold, ordered, ready, ready_at_s = SharedCoresHold(), 1, 1, 0
    before = replace(Fleet().report_of("r0"), time_s=0.0, answered_total=0.0, late_total=0.0)
    replicas = []
    for now_s in range(seconds):
        if ready < ordered and now_s >= ready_at_s:
            ready = ordered
        in_time = min(offered_per_s, capacity_per_s(ready))
        after = replace(
            before,
            time_s=float(now_s),
            answered_total=before.answered_total + in_time + LATE_PER_S,
            late_total=before.late_total + LATE_PER_S,
        )
        hold.count_between(before, after)
        before = after
        hold.observe(
            float(now_s),
            on_shared_cores=shared(now_s),
            offered_per_s=offered_per_s,
            ready_replicas=ready,
        )
        settled = now_s > ready_at_s + 3 * WINDOW_S
        if ready == ordered and settled and not hold.holds(float(now_s)):
            ordered, ready_at_s = ordered + 1, now_s + START_S
            if shared(now_s):
                hold.note_order(ordered)
        replicas.append(ordered)
    return replicas


def test_one_order_that_gains_nothing_is_the_last() -> None:
    assert run(lambda ready: 400.0)[-1] == 2


@pytest.mark.parametrize(("gain", "last"), [(1.05, 2), (1.2, 6)])
def test_a_tenth_is_enough_to_go_on(gain: float, last: int) -> None:
    replicas = run(lambda ready: 300.0 * gain ** (ready - 1), seconds=285)
    assert replicas[-1] == last


def test_replicas_with_cores_of_their_own_are_not_held() -> None:
    free = run(lambda ready: 400.0 * ready, shared=lambda now_s: False)
    assert run(lambda ready: 150.0 * ready) == run(
        lambda ready: 150.0 * ready, shared=lambda now_s: False
    )
    assert free[-1] > 2


def test_a_fleet_that_loses_nothing_is_not_held() -> None:
    """It answers all that is offered before and after; the order was for what is to come."""
    assert run(lambda ready: 400.0, offered_per_s=390.0)[-1] > 2


def test_a_hold_ends_when_cores_are_free_again_and_after_a_while() -> None:
    until_s = 150

    def replicas(seconds: int, shared: Callable[[int], bool]) -> list[int]:
        return run(lambda ready: 400.0, shared=shared, seconds=seconds)

    freed = replicas(300, lambda now_s: now_s < until_s)
    assert freed[until_s + int(CLEARED_AFTER_S) - 1] == 2
    assert freed[until_s + int(CLEARED_AFTER_S) + 1] == 3
    held = replicas(1000, lambda now_s: True)
    first_held_s = 3 * int(WINDOW_S) + START_S + int(WINDOW_S)
    assert held[first_held_s + int(RETRY_S) - 10] == 2
    assert held[-1] == 3


def test_a_moment_without_the_bottleneck_does_not_end_a_hold() -> None:
    assert run(lambda ready: 400.0, shared=lambda now_s: now_s % 20 < 15)[-1] == 2


def test_an_order_that_is_given_up_keeps_no_later_one_from_being_judged() -> None:
    """Eight ordered where there is room for four: no order of up to eight was judged any more."""
    hold, report = SharedCoresHold(), replace(Fleet().report_of("r0"), late_total=0.0)
    for now_s in range(1, 6 * round(WINDOW_S)):
        if now_s == round(WINDOW_S):
            hold.note_order(8)
            hold.note_scale_in(3)
            hold.note_order(4)
        before = replace(report, time_s=now_s - 1.0, answered_total=50.0 * now_s)
        after = replace(report, time_s=float(now_s), answered_total=50.0 * (now_s + 1))
        hold.count_between(before, after)
        hold.observe(float(now_s), on_shared_cores=True, offered_per_s=100.0, ready_replicas=4)
    assert hold.holds(float(now_s))
