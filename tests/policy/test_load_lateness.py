"""The service curve: one replica's late share by its arrival rate."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.load_lateness import LoadLatenessCurve, solve_load_lateness_curve
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.solvers.constrained import solve_constrained

B = np.arange(1, 33)
P4 = Profile("googlenet", "tesla-p4", 1.052 + 0.3051 * B, energy_mj=19.6 + 19.9 * B)
FLAT = Profile("flat", "d", 50 + 0.5 * B)
CASES = [(P4, 12.0, 32), (P4, 20.0, 32), (P4, 50.0, 96), (FLAT, 150.0, 32)]


def level(profile, policy, rate, response_time_ms, room):
    found = evaluate(profile, policy, rate, waiting_room=room)
    return (1 - found.full_probability) * found.service_level(response_time_ms)


def work_conserving(profile):
    return BatchingPolicy.from_control_limit(1, profile.max_batch_size)


@pytest.mark.parametrize(("profile", "response_time_ms", "room"), CASES)
def test_highest_rate_that_meets_the_sla(profile, response_time_ms, room):
    curve = solve_load_lateness_curve(profile, ServiceLevelObjective(response_time_ms, 99.0), room)
    rate, policy = curve.sla_rate_per_s, work_conserving(profile)
    assert level(profile, policy, rate, response_time_ms, room) >= 0.99
    at_capacity = rate == pytest.approx(profile.capacity_per_s)
    assert at_capacity or level(profile, policy, 1.001 * rate, response_time_ms, room) < 0.99


@pytest.mark.parametrize(("profile", "response_time_ms", "room"), CASES)
def test_no_control_limit_takes_more_than_the_work_conserving_policy(
    profile, response_time_ms, room
):
    """So the simplest policy is what sizes a fleet, whatever is saved by waiting at lower rates."""
    objective = ServiceLevelObjective(response_time_ms, 99.0)
    rate = 1.01 * solve_load_lateness_curve(profile, objective, room).sla_rate_per_s
    if rate > profile.capacity_per_s:
        return  # already all that a device can carry
    for limit in (2, 4, 8, 16, 24, 32):
        policy = BatchingPolicy.from_control_limit(limit, 32)
        assert level(profile, policy, rate, response_time_ms, room) < 0.99
    solution = solve_constrained(profile, rate, response_time_ms=response_time_ms, percentile=99)
    assert level(profile, solution.policy, rate, response_time_ms, room) < 0.99


@pytest.mark.parametrize("share", [0.3, 0.66, 0.87, 0.92, 1.0, 1.07, 1.3])
@pytest.mark.parametrize(("profile", "response_time_ms", "room"), CASES)
def test_late_share_between_the_multiples(profile, response_time_ms, room, share):
    """Its logarithm is interpolated: right to a quarter where it matters, or next to nothing."""
    curve = solve_load_lateness_curve(profile, ServiceLevelObjective(response_time_ms, 99.0), room)
    rate = share * curve.sla_rate_per_s
    exact = 1 - level(profile, work_conserving(profile), rate, response_time_ms, room)
    assert curve.late_share(rate) == pytest.approx(exact, rel=0.25, abs=2e-4)
    assert curve.service_level(rate) == 1 - curve.late_share(rate)


@settings(derandomize=True, max_examples=60)
@given(
    st.floats(0.1, 1e6),
    st.lists(st.floats(0, 1), min_size=16, max_size=16),
    st.lists(st.floats(0, 5e6), min_size=2, max_size=6),
)
def test_late_share_never_falls_with_the_rate(rate, shares, rates):
    curve = LoadLatenessCurve(rate, tuple(sorted(shares)))
    found = [curve.late_share(one) for one in sorted(rates)]
    assert all(low <= high + 1e-9 for low, high in pairwise(found))
    assert all(0 <= one <= 1 for one in found)


@settings(derandomize=True, max_examples=60)
@given(st.floats(0.0, 1e5))
def test_replicas_needed_is_the_least_number_that_meets_the_sla(demand):
    shares = tuple(min(1.0, 0.01 * m**8) for m in LoadLatenessCurve.MULTIPLES)
    curve = LoadLatenessCurve(137.0, shares)
    n = curve.replicas_needed(demand)
    assert curve.service_level(demand / n) >= 0.99 - 1e-9
    assert n == 1 or curve.service_level(demand / (n - 1)) < 0.99


def test_beyond_the_last_multiple_no_more_are_answered_in_time():
    curve = solve_load_lateness_curve(P4, ServiceLevelObjective(20.0, 99.0), 32)
    last = 1.5 * curve.sla_rate_per_s
    assert 10 * last * curve.service_level(10 * last) == pytest.approx(
        10 * last * curve.service_level(last) / 10
    )


@pytest.mark.parametrize("room", [32, 96, 1440, 4096])
def test_takes_less_than_a_second_whatever_the_waiting_room(room):
    """It is solved beside the requests, at low priority, on a core that may be theirs."""
    begin_s = time.process_time()
    solve_load_lateness_curve(P4, ServiceLevelObjective(3.5 * room, 99.0), room)
    assert time.process_time() - begin_s < 1.0


def test_a_large_room_changes_little():
    """It is taken for one of 512: what that refuses, the larger would have served in time."""
    exact = evaluate(P4, work_conserving(P4), 0.98 * P4.capacity_per_s, waiting_room=1024)
    curve = solve_load_lateness_curve(P4, ServiceLevelObjective(400.0, 99.0), 1024)
    assert curve.sla_rate_per_s == P4.capacity_per_s
    exact_late = 1 - (1 - exact.full_probability) * exact.service_level(400.0)
    assert curve.late_share(exact.arrival_rate_per_s) == pytest.approx(exact_late, abs=1e-3)


def test_never_above_the_capacity():
    curve = solve_load_lateness_curve(P4, ServiceLevelObjective(200.0, 90.0), 544)
    assert curve.sla_rate_per_s == P4.capacity_per_s


def test_an_sla_out_of_reach_is_said():
    with pytest.raises(
        InfeasibleError, match=r"99% within 50\.4 ms is out of reach: .* 0% in time"
    ):
        solve_load_lateness_curve(FLAT, ServiceLevelObjective(50.4, 99.0), 32)
    with pytest.raises(InfeasibleError, match=r"answers 8[0-9.]+% in time"):
        solve_load_lateness_curve(FLAT, ServiceLevelObjective(79.5, 99.0), 32)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_cannot_be_is_refused(rate):
    with pytest.raises(InvalidInputError, match="sla_rate_per_s"):
        LoadLatenessCurve(rate, len(LoadLatenessCurve.MULTIPLES) * (0.0,))


@pytest.mark.parametrize("shares", [(), (0.1,), 15 * (0.2,) + (0.1,), 15 * (0.0,) + (1.1,)])
def test_shares_that_cannot_be_are_refused(shares):
    with pytest.raises(InvalidInputError, match="late_shares"):
        LoadLatenessCurve(10.0, shares)
