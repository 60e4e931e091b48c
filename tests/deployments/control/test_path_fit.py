"""When the costs of the way in the model follow those measured."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.control.path_fit import PathFit
from policy.path import PathCosts
from policy.response_time.way import BalancerLoad

BUSY = BalancerLoad(0.05, 0.4)


@given(balancer_ms=st.floats(1e-3, 1), load=st.floats(0.1, 0.99), rate_per_s=st.floats(10, 10_000))
def test_the_path_has_the_balancer_as_busy_as_it_was_seen(
    balancer_ms: float, load: float, rate_per_s: float
) -> None:
    fit = PathFit()
    changed = [fit.revise(BalancerLoad(balancer_ms, load), rate_per_s) for _ in range(2)]
    assert changed == [False, True]
    assert fit.path is not None
    assert fit.path.balancer_ms == pytest.approx(balancer_ms, rel=0.05)
    assert rate_per_s / fit.path.capacity_per_s == pytest.approx(load, rel=0.11)


def test_one_odd_look_changes_nothing() -> None:
    fit = PathFit(PathCosts(0.02))
    assert not any(fit.revise(load, 2000.0) for load in (BUSY, BalancerLoad(0.02, 0.04), BUSY))
    assert fit.path == PathCosts(0.02)


def test_small_deviations_and_an_idle_balancer_are_let_be() -> None:
    fit = PathFit(PathCosts(0.05, 4.0))
    near, idle = BalancerLoad(0.06, 0.45), BalancerLoad(0.2, 0.05)
    assert not any(fit.revise(load, 2000.0) for load in (near, near, near, idle, idle))


def test_what_is_not_known_is_not_adopted() -> None:
    fit = PathFit()
    assert not any(fit.revise(way, rate) for way, rate in ((None, 9.0), (BUSY, 0.0), (None, 9.0)))
    assert fit.path is None


def test_it_rests_longer_after_each_change() -> None:
    fit = PathFit()
    # It costs more each time it is looked at.
    changes = [
        check for check in range(200) if fit.revise(BalancerLoad(0.01 * 1.1**check, 0.5), 1000.0)
    ]
    rests = [after - before for before, after in itertools.pairwise(changes)]
    assert len(rests) >= 3
    assert rests == sorted(rests)
    assert rests[0] > PathFit.REST_AFTER_CHANGE


def test_one_check_is_enough_where_the_curve_is_solved_anyway() -> None:
    fit = PathFit()
    assert fit.revise(BUSY, 2000.0, solving_anyway=True)
    assert fit.path is not None
    # It was no change of its own, so the next needs no rest, but two checks again.
    dear = BalancerLoad(0.1, 0.8)
    assert [fit.revise(dear, 2000.0) for _ in range(2)] == [False, True]
    # Even while it rests.
    assert not fit.revise(BUSY, 2000.0)
    assert fit.revise(BUSY, 2000.0, solving_anyway=True)
