import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.event_loop import EventLoopCosts
from policy.load_lateness import LoadLatenessCurve
from policy.objective import ServiceLevelObjective
from policy.optimization import solve
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.solvers.load_lateness import solve_load_lateness_curve
from tests.support.profiles import GOOGLENET_P4 as P4
from tests.support.profiles import PADDED

B = np.arange(1, 33)
FLAT = Profile("flat", "d", 50 + 0.5 * B)
TWO_STEPS = Profile("two", "steps", np.array([1.0] * 4 + [1.95] * 4))
BELOW_CAPACITY = [(P4, 12.0, 32), (P4, 20.0, 32), (FLAT, 150.0, 32)]
CASES = [*BELOW_CAPACITY, (P4, 50.0, 96)]


def level(profile, policy, rate, response_time_ms, room):
    found = evaluate(profile, policy, rate, max_queue_rows=room)
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


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "response_time_ms", "room"), BELOW_CAPACITY)
def test_no_control_limit_takes_more_than_the_work_conserving_policy(
    profile, response_time_ms, room
):
    """So the work-conserving policy sizes a fleet, whatever waiting saves at lower rates."""
    objective = ServiceLevelObjective(response_time_ms, 99.0)
    rate = 1.01 * solve_load_lateness_curve(profile, objective, room).sla_rate_per_s
    assert rate < profile.capacity_per_s
    for limit in (2, 8, 32):
        policy = BatchingPolicy.from_control_limit(limit, 32)
        assert level(profile, policy, rate, response_time_ms, room) < 0.99
    solution = solve(profile, rate, ServiceLevelObjective(response_time_ms, 99))
    assert level(profile, solution.policy, rate, response_time_ms, room) < 0.99


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.66, 0.92, 1.07, 1.3])
@pytest.mark.parametrize(("profile", "response_time_ms", "room"), CASES)
def test_late_share_between_the_multiples(profile, response_time_ms, room, share):
    """Its logarithm is interpolated: within a quarter where it matters."""
    curve = solve_load_lateness_curve(profile, ServiceLevelObjective(response_time_ms, 99.0), room)
    rate = share * curve.sla_rate_per_s
    exact = 1 - level(profile, work_conserving(profile), rate, response_time_ms, room)
    assert curve.late_share(rate) == pytest.approx(exact, rel=0.25, abs=2e-4)
    assert curve.service_level(rate) == 1 - curve.late_share(rate)


@given(st.floats(0.0, 1e5))
def test_replicas_needed_is_the_least_number_that_meets_the_sla(demand):
    shares = tuple(min(1.0, 0.01 * m**8) for m in LoadLatenessCurve.MULTIPLES)
    curve = LoadLatenessCurve(137.0, shares)
    n = curve.replicas_needed(demand)
    assert curve.service_level(demand / n) >= 0.99 - 1e-9
    assert n == 1 or curve.service_level(demand / (n - 1)) < 0.99


@pytest.mark.parametrize(
    ("profile", "response_time_ms", "rate_per_s", "rate_of_best_size_per_s"),
    [
        # The best size is 8, but two batches of 8 take 3.9 ms.
        (TWO_STEPS, 2.9, 2661, 1506),
        (PADDED, 12.0, 3632, 2507),
        (PADDED, 16.0, 4090, 4090),
    ],
)
def test_where_the_batch_time_has_steps_a_smaller_limit_can_take_more(
    profile, response_time_ms, rate_per_s, rate_of_best_size_per_s
):
    """The rates by limit were found by bisection on `evaluate` apart from the curve."""
    curve = solve_load_lateness_curve(profile, ServiceLevelObjective(response_time_ms, 99.0), 64)
    assert curve.sla_rate_per_s == pytest.approx(rate_per_s, rel=2e-3)
    best = work_conserving(profile)
    rate = rate_of_best_size_per_s
    assert level(profile, best, 0.998 * rate, response_time_ms, 64) >= 0.99
    assert level(profile, best, 1.002 * rate, response_time_ms, 64) < 0.99


@pytest.mark.slow
def test_leaving_requests_behind_can_take_more():
    """Batches of 4, 8 or 16 take 2.8% more than the best limit on batches that take all.

    At 2,865 per second a simulation of 10,000,000 arrivals had 99.015% in time, with a standard
    error of 0.009%.
    """
    curve = solve_load_lateness_curve(PADDED, ServiceLevelObjective(8.0, 99.0), 64)
    assert curve.sla_rate_per_s == pytest.approx(2865, rel=2e-3)
    assert curve.service_level(2865) == pytest.approx(0.99015, abs=1e-3)


LEVELS = tuple(1 / (1.0 + 2 * m) for m in LoadLatenessCurve.OVERLOADS)


def test_a_replica_that_refuses_by_time_goes_on_to_answer_in_time_beyond_its_rate():
    """Without such refusals nearly all that it takes is late."""
    sla = ServiceLevelObjective(19.5, 99.0)
    limited = P4.up_to(27)
    refusing = solve_load_lateness_curve(limited, sla, 54, admit_within_ms=0.97 * 19.5)
    serving = solve_load_lateness_curve(limited, sla, 54)
    rate = refusing.sla_rate_per_s
    assert rate == serving.sla_rate_per_s
    assert refusing.late_shares == serving.late_shares
    assert serving.overload_levels == ()
    for multiple in (0.3, 0.9, 1.0):
        assert refusing.service_level(multiple * rate) == serving.service_level(multiple * rate)
    for multiple in (1.18, 1.5, 2.0, 10.0):
        assert multiple * refusing.service_level(multiple * rate) > 1.05
        in_time_per_s = multiple * refusing.service_level(multiple * rate) * rate
        assert in_time_per_s <= limited.capacity_per_s * (1 + 1e-9)
    assert serving.service_level(1.5 * rate) < 0.02


@pytest.mark.slow
def test_where_the_event_loop_limits_the_replica_no_more_is_in_time_than_it_passes_on():
    sla = ServiceLevelObjective(29.5, 99.0)
    profile = replace(P4, event_loop=EventLoopCosts(0.6, 0.5, shares_cpu=False))
    curve = solve_load_lateness_curve(profile, sla, 64, admit_within_ms=28.6)
    rate = curve.sla_rate_per_s
    most = 1e3 / (0.6 + 0.5 / 32)
    assert rate < most < P4.capacity_per_s
    for multiple in (1.2, 2.0, 3.0):
        in_time = multiple * curve.service_level(multiple * rate)
        assert in_time == pytest.approx(max(0.99, 0.9 * most / rate), rel=1e-6)


@given(
    st.lists(st.floats(0, 1), min_size=16, max_size=16),
    st.lists(st.floats(0, 1), min_size=7, max_size=7).map(tuple) | st.just(()),
    st.lists(st.floats(0.0, 50.0), min_size=2, max_size=6),
)
def test_the_service_level_never_rises_with_the_rate(shares, levels, multiples):
    levels = tuple(sorted(levels, reverse=True))
    curve = LoadLatenessCurve(137.0, tuple(sorted(shares)), overload_levels=levels)
    found = [curve.service_level(137.0 * multiple) for multiple in sorted(multiples)]
    assert all(low >= high - 1e-9 for low, high in pairwise(found))
    assert all(0 <= one <= 1 and type(one) is float for one in found)  # decisions become JSON
    late = [curve.late_share(137.0 * multiple) for multiple in sorted(multiples)]
    assert all(-1e-9 <= low <= high + 1e-9 for low, high in pairwise([*late, 1.0]))


def test_beyond_the_last_overload_no_more_are_answered_in_time():
    curve = LoadLatenessCurve(10.0, 16 * (0.0,), overload_levels=LEVELS)
    assert 300 * curve.service_level(300) == pytest.approx(30 * curve.service_level(30))
    assert curve.service_level(20.0) == pytest.approx(LEVELS[LoadLatenessCurve.OVERLOADS.index(2)])
    assert 300 * (1 - curve.late_share(300)) == pytest.approx(15)


@pytest.mark.slow
def test_a_large_room_changes_little():
    """It is taken as one of 512, which refuses what the larger would serve in time."""
    exact = evaluate(P4, work_conserving(P4), 0.98 * P4.capacity_per_s, max_queue_rows=1024)
    curve = solve_load_lateness_curve(P4, ServiceLevelObjective(400.0, 99.0), 1024)
    assert curve.sla_rate_per_s == P4.capacity_per_s
    exact_late = 1 - (1 - exact.full_probability) * exact.service_level(400.0)
    assert curve.late_share(exact.arrival_rate_per_s) == pytest.approx(exact_late, abs=1e-3)


def test_an_sla_out_of_reach_for_lack_of_room_is_told_of_the_requests_refused():
    with pytest.raises(
        InfeasibleError,
        match=r"answers 96\.1% in time, and its waiting room for 0 refuses 3\.86%; allow a larger "
        "waiting room or a lower percentile",
    ):
        solve_load_lateness_curve(P4, ServiceLevelObjective(20.0, 99.0), 0)


@pytest.mark.parametrize(("percentile", "round_trip_ms"), [(50.0, 0.0), (99.9, 0.0), (99.9, 12.0)])
def test_an_sla_out_of_reach_is_told_what_is_in_reach_of_the_client(percentile, round_trip_ms):
    def solve(response_time_ms: float) -> None:
        sla = ServiceLevelObjective(response_time_ms, percentile)
        solve_load_lateness_curve(FLAT, sla, 32, round_trip_ms=round_trip_ms)

    with pytest.raises(InfeasibleError, match=r"% of requests within 10 ms is out") as caught:
        solve(10.0)
    named_ms = float(re.search(r", and [0-9.]+% within ([0-9.]+) ms;", str(caught.value))[1])
    solve(named_ms)
    with pytest.raises(InfeasibleError):
        solve(0.9 * named_ms)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sla_rate_per_s": np.inf}, "sla_rate_per_s"),
        ({"late_shares": (0.1,)}, "late_shares"),
        ({"late_shares": 15 * (0.2,) + (0.1,)}, "late_shares"),
        ({"overload_levels": LEVELS[::-1]}, "overload_levels"),
    ],
)
def test_values_out_of_range_are_refused(change, message):
    with pytest.raises(InvalidInputError, match=message):
        replace(LoadLatenessCurve(10.0, 16 * (0.0,)), **change)
