import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.observe.offered_load import RecentAttempts
from autoscaler.observe.overload import MAX_OVER_OFFERED, OverloadNeed, overload_need
from tests.support.autoscaling.reporting_fleet import PER_REPLICA, PROFILE, Fleet

RETRIES = 5


def attempts_of(offered, capacity, seconds=5):
    """Return what is seen of replicas that accept up to `capacity` and refuse the rest.

    A refused request is tried again until the retries run out: with p the share of the tries that
    are refused, (1 - p) tries are accepted, and p ** 6 of the requests given up.
    """
    given_up = max(0.0, 1 - capacity / offered)
    p = given_up ** (1 / (RETRIES + 1))
    attempts = min(offered, capacity) / (1 - p)
    ones = np.ones(seconds)
    counted = offered * ones, attempts * ones, p * attempts * ones
    return RecentAttempts(*counted, by_balancer=0 * ones, replicas=2 * ones)


def need(seen, capacity_per_s=100.0, backlog=0.0):
    return overload_need(seen, capacity_per_s, 0.01, RETRIES, backlog)


@given(st.floats(1.0, 1e5), st.floats(1.0, 1e5), st.floats(0.1, 1e4), st.floats(0.0, 1e6))
def test_never_above_what_was_offered_and_a_half(offered, capacity, model_per_s, backlog):
    found = need(attempts_of(offered, capacity), model_per_s, backlog)
    assert 0 <= found.rate_per_s <= MAX_OVER_OFFERED * offered * (1 + 1e-9)


@given(st.floats(1.0, 1e5), st.floats(1.0, 10.0), st.floats(0.1, 1e4))
def test_a_fleet_that_accepts_all_needs_nothing_beyond_the_forecast(offered, reserve, model_per_s):
    assert need(attempts_of(offered, reserve * offered), model_per_s) == OverloadNeed()


@pytest.mark.parametrize(
    ("accepted_per_s", "seconds", "needed_per_s"),
    [(200.0, 5, 500.0), (160.0, 5, 625.0), (160.0, 4, 625.0), (160.0, 3, 500.0)],
)
def test_replicas_that_accept_less_than_they_are_sized_for_count_for_less(
    accepted_per_s, seconds, needed_per_s
):
    """Two that accept 80/s each where the model says 100/s: sized for 625/s, they get 500/s.

    A capacity needs three full seconds beside the first.
    """
    found = need(attempts_of(500.0, accepted_per_s, seconds))
    assert found.rate_per_s == pytest.approx(needed_per_s)
    assert found.reason.endswith("of the requests are given up")


def test_replicas_that_have_just_begun_to_serve_are_not_slow():
    """Two full replicas accept 200/s; then six more serve, which are not full at once."""
    seen = attempts_of(500.0, 200.0)
    seen.replicas[4:] = 8.0
    assert need(seen).rate_per_s == pytest.approx(500.0)


def test_a_backlog_is_drained_within_the_bound():
    seen = attempts_of(100.0, 200.0)
    assert need(seen, backlog=200.0).rate_per_s == pytest.approx(120.0)
    assert need(seen, backlog=20_000.0).rate_per_s == pytest.approx(150.0)


@pytest.mark.slow
def test_devices_that_become_slower_than_the_model_says_get_replicas_at_once():
    """Twice: the correction alone takes minutes, and the profile is refitted even later."""
    slowness = [1.0]
    fleet = Fleet(
        6,
        seed=4,
        start_time_s=60.0,
        batch_ms=lambda size: slowness[0] * float(PROFILE.latency_ms[size - 1]),
    )
    fleet.run(900, 5 * PER_REPLICA)
    before = fleet.history[-1]
    slowness[0] = 2.0
    fleet.run(15, 5 * PER_REPLICA)
    assert fleet.history[-1] > before
    fleet.run(120, 5 * PER_REPLICA)
    assert max(fleet.history) <= 1.5 * 2 * 6


def test_small_errors_are_left_to_the_correction():
    """It could not learn from what is made good at once."""
    assert need(attempts_of(500.0, 480.0)) == OverloadNeed()
    assert need(attempts_of(500.0, 470.0)).rate_per_s > 0
