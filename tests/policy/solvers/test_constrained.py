from dataclasses import replace

import numpy as np
import pytest

from policy.baseline_policies import work_conserving
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.latency_quantiles import LatencyQuantiles
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.solvers import constrained
from tests.support.profiles import GOOGLENET_P4, PADDED

TENTH_PER_S = 0.1 * GOOGLENET_P4.capacity_per_s
SIZES = np.arange(1, 9)
LINE = Profile("a", "line", 1.0 + 0.3 * SIZES, 20.0 + 20.0 * SIZES)
STEEP = Profile("mostly", "fixed", 5.0 + 0.1 * SIZES, 50.0 + 5.0 * SIZES)
PAIRS = Profile("in", "pairs", np.array([2.2, 2.2]), np.full(2, 10.0))
LATE_STEP = Profile(
    "late", "step", np.array([1, 1.1, 1.2, 1.3, 2.8, 2.9, 3, 3.1]), 0.9 + SIZES / 10
)
TWO_STEPS = Profile("two", "steps", np.array([1.0] * 4 + [1.95] * 4), 10.0 + 5 * SIZES)
FOUR = Profile(
    "four", "sizes", np.array([2.160333, 2.345, 2.568, 3.028]), np.array([10.0, 10.0, 30.0, 30.0])
)
THREES = Profile(
    "in",
    "threes",
    np.array([1.4] * 3 + [2.6] * 3),
    np.array([5.2, 5.6, 5.7, 6.2, 6.2, 6.4]),
)
STEPS = Profile("in", "steps", np.array([1, 1, 1.4, 1.4, 2.4, 2.4, 2.4, 2.4]), 9.0 + SIZES)


def full_search(profile, rate, response_time_ms, percentile):
    """Least power over all control limits and a fine grid of waits; None if none is in time."""
    size = profile.max_batch_size
    powers = []
    for limit in range(1, size + 1):
        for wait in [None, *np.linspace(0, 2 * response_time_ms, 81)]:
            policy = BatchingPolicy.from_control_limit(limit, size, wait)
            evaluation = evaluate(profile, policy, rate)
            if evaluation.service_level(response_time_ms) >= percentile / 100:
                powers.append(evaluation.mean_power_w)
    return min(powers, default=None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "traffic_intensity", "response_time_ms", "percentile"),
    [
        (LINE, 0.6, 8.0, 95),
        (LINE, 0.8, 3.0, 99),
        (STEEP, 0.3, 15.0, 90),
        (STEPS, 0.4, 6.0, 99),
    ],
)
def test_no_policy_in_time_takes_less_power(
    profile, traffic_intensity, response_time_ms, percentile
):
    rate = traffic_intensity * profile.capacity_per_s
    solution = constrained.solve(profile, rate, ServiceLevelObjective(response_time_ms, percentile))
    least = full_search(profile, rate, response_time_ms, percentile)
    assert solution.meets_sla == (least is not None)
    if solution.meets_sla:
        assert solution.mean_power_w <= least * 1.003
        assert solution.percentile_ms <= response_time_ms * (1 + 1e-6)
        assert solution.service_level >= percentile / 100 - 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(
    "start",
    [
        BatchingPolicy.from_control_limit(20, 32, 13.0),  # close by
        BatchingPolicy.from_control_limit(20, 32),
        BatchingPolicy.from_control_limit(64, 64, 1.0),
    ],
)
def test_the_power_does_not_depend_on_the_start(start):
    rate = 0.5 * GOOGLENET_P4.capacity_per_s
    objective = ServiceLevelObjective(20, 99)
    alone = constrained.solve(GOOGLENET_P4, rate, objective)
    started = constrained.solve(GOOGLENET_P4, rate, objective, start=start)
    assert started.meets_sla
    assert started.service_level >= 0.99 - 1e-9
    assert started.mean_power_w == pytest.approx(alone.mean_power_w, rel=0.003)


@pytest.mark.parametrize(
    ("profile", "rate", "response_time_ms", "percentile", "level"),
    [
        # Batches of 32 have a lower 95th percentile than to start at once, but none is in time.
        (GOOGLENET_P4, 147.94, 1.5, 95, 0.8192),
        # To start at once brings 42.1% in time, to wait up to 3.3 ms for a second request 45.6%.
        (PAIRS, 0.9 * PAIRS.capacity_per_s, 5.5, 90, 0.4555),
    ],
)
def test_where_no_policy_is_in_time_the_most_requests_are(
    profile, rate, response_time_ms, percentile, level
):
    """`level` is the highest of all control limits and 31 waits, rounded down."""
    solution = constrained.solve(profile, rate, ServiceLevelObjective(response_time_ms, percentile))
    assert not solution.meets_sla
    assert solution.service_level >= 0.99 * level
    assert solution.service_level < percentile / 100


@pytest.mark.parametrize(
    ("profile", "rate", "response_time_ms", "percentile", "power_w"),
    [
        # A looser SLA takes less power; to start at once takes 11.3 W.
        *(
            (GOOGLENET_P4, TENTH_PER_S, *case)
            for case in ((5, 99, 8.98), (10, 99, 7.73), (20, 99, 6.90))
        ),
        # A batch of 32 takes 7 ms, one of 16 takes 4 ms. Simulated p99: 10.6 ms.
        (PADDED, 3200.0, 12.0, 99, 8.0),
        # Batches of 4 have the highest throughput, batches of 8 the least energy per request.
        (LATE_STEP, 1000.0, 20.0, 99, 0.2125),
        # Two batches of 8 take longer than the SLA, two of 4 do not.
        (TWO_STEPS, 2500.0, 2.9, 99, 19.09),
        # Of 4 or 5 in the queue only 3 start; all that wait, up to 3 or 6, take 10% more.
        (THREES, 0.85 * THREES.capacity_per_s, 3.5, 50, 3.0296),
        # The first policy in time has a control limit of 2, and so has the best, at 1.08 ms.
        (FOUR, 0.4 * FOUR.capacity_per_s, 1.5 * 2.160333, 50, 3.9481),
    ],
)
def test_it_takes_the_least_power_also_where_the_batch_time_has_steps(
    profile, rate, response_time_ms, percentile, power_w
):
    """The last power is the least of all control limits and 31 waits."""
    solution = constrained.solve(profile, rate, ServiceLevelObjective(response_time_ms, percentile))
    assert solution.meets_sla
    assert solution.mean_power_w == pytest.approx(power_w, rel=2e-3)


def test_without_energy_the_device_busy_time_is_the_least():
    profile = Profile("no", "energy", LINE.latency_ms)
    rate = 0.3 * profile.capacity_per_s
    solution = constrained.solve(profile, rate, ServiceLevelObjective(10, 99))
    greedy = evaluate(profile, work_conserving(profile), rate)
    assert solution.mean_power_w is None
    assert solution.meets_sla
    assert solution.device_busy_fraction < 0.9 * greedy.device_busy_fraction


@pytest.mark.slow
def test_where_batch_times_vary_it_finds_the_longest_wait_that_keeps_the_sla():
    quantiles = LatencyQuantiles.from_dict({"10": 0.97, "50": 1.0, "90": 1.05, "99": 1.3}, 32)
    varying = replace(GOOGLENET_P4, latency_quantiles=quantiles)
    rate, objective = 0.1 * GOOGLENET_P4.capacity_per_s, ServiceLevelObjective(20, 99)
    policy = constrained.solve(varying, rate, objective).policy
    assert evaluate(varying, policy, rate).service_level(20) >= 0.99
    longer = replace(policy, max_wait_ms=policy.max_wait_ms + 0.02 * 20)
    assert evaluate(varying, longer, rate).service_level(20) < 0.99


def test_a_target_of_exactly_one_batch_time_can_be_met():
    profile = Profile("one", "by one", np.array([2.0]), np.array([1.0]))
    solution = constrained.solve(profile, 0.001, ServiceLevelObjective(2.0, 99))
    assert solution.meets_sla
    assert solution.policy == BatchingPolicy((0, 1))


def test_a_response_time_below_the_shortest_batch_is_infeasible():
    with pytest.raises(InfeasibleError, match=r"takes 1\.3571 ms"):
        constrained.solve(GOOGLENET_P4, 10, ServiceLevelObjective(1.35, 99))
