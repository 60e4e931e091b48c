import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.simulator.autoscalers.bound import bound_replica_seconds
from autoscaler.simulator.autoscalers.oracle import (
    Clairvoyant,
    required_replicas_by_second,
)
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import simulate
from autoscaler.simulator.start_time import StartTime
from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from tests.support.profiles import GOOGLENET_P4

MANY_SECONDS = st.lists(st.integers(0, 30), min_size=1, max_size=80)
START_TIMES_S = st.integers(0, 5)
FEW_COUNTS = st.lists(st.integers(0, 12), min_size=1, max_size=4)
MANY_COUNTS = st.lists(st.integers(0, 200), min_size=1, max_size=200)

SLOW = Profile("googlenet", "slow", 20 * GOOGLENET_P4.latency_ms)
OBJECTIVE = ServiceLevelObjective(500, 99)
RATE_PER_S = 140.0
OFFERED = np.rint(RATE_PER_S * (3 + 2.5 * np.sin(np.arange(240) / 17)))


@given(required=MANY_SECONDS, start_time_s=START_TIMES_S)
def test_the_cost_is_the_sum_over_the_levels(required, start_time_s):
    """Add up the required seconds and, for each gap, the cheaper of keeping and starting."""
    cost = 0
    for level in range(1, max(required) + 1):
        seconds = np.flatnonzero(np.array(required) >= level)
        gaps = np.diff(np.concatenate(([-1], seconds))) - 1
        cost += seconds.size + int(np.minimum(gaps, start_time_s).sum())
    assert Clairvoyant(required, start_time_s).ordered.sum() == cost


def test_the_required_replicas_by_second_cover_each_second():
    offered = [0, 99, 100, 101, 1000]
    assert required_replicas_by_second(offered, 100).tolist() == [1, 1, 1, 2, 10]
    assert required_replicas_by_second([0.0], 100, min_replicas=0).tolist() == [0]


@pytest.mark.parametrize("start_time_s", [0, 7])
def test_a_simulated_fleet_follows_and_pays_for_the_schedule(start_time_s):
    required = required_replicas_by_second(OFFERED, RATE_PER_S)
    oracle = Clairvoyant(required, start_time_s)
    scenario = Scenario(
        SLOW,
        OBJECTIVE,
        OFFERED,
        batching=BatchingPolicy.from_control_limit(1, 32),
        start_time=StartTime(start_time_s),
        replicas=oracle.initial_replicas,
    )
    run = simulate(scenario, oracle)
    assert run.ordered.tolist() == oracle.ordered.tolist()
    assert np.all(run.ready >= required)
    removed = int(np.sum(np.maximum(0, -np.diff(oracle.ordered))))
    drained_s = run.paid_replica_s - oracle.ordered.sum()
    assert 0 <= drained_s <= removed * 1e-3 * OBJECTIVE.response_time_ms
    assert run.compliant().all()


def cost_of(schedule, start_time_s):
    """Return what a schedule of serving replicas costs; the first ones serve at once."""
    starts = np.maximum(0, np.diff(schedule)).sum()
    return float(np.sum(schedule) + start_time_s * starts)


def optimum_by_enumeration(counts, capacity, share, start_time_s, window_s):
    """Return the least cost of all schedules that hold every window of the relaxed problem."""
    most = int(np.ceil(max(counts) / capacity)) + 1
    starts = np.arange(0, len(counts), window_s)
    allowed = share * np.add.reduceat(np.array(counts, float), starts)
    costs = []
    for schedule in itertools.product(range(1, most + 1), repeat=len(counts)):
        late = np.maximum(0.0, np.array(counts) - capacity * np.array(schedule))
        if np.all(np.add.reduceat(late, starts) <= allowed + 1e-9):
            costs.append(cost_of(schedule, start_time_s))
    return min(costs)


@settings(max_examples=8)
@given(
    counts=FEW_COUNTS,
    share=st.sampled_from([0.0, 0.05, 0.2]),
    start_time_s=st.sampled_from([0.0, 1.0, 3.0]),
    window_s=st.sampled_from([2, 3]),
)
def test_no_schedule_that_holds_its_windows_costs_less(counts, share, start_time_s, window_s):
    bound = bound_replica_seconds(counts, 4.0, share, start_time_s, window_s=window_s)
    assert bound <= optimum_by_enumeration(counts, 4.0, share, start_time_s, window_s) + 1e-6


@settings(max_examples=20)
@given(counts=MANY_COUNTS, start_time_s=st.integers(0, 40), share=st.floats(0, 0.2))
def test_it_is_below_the_oracle_by_seconds_and_above_the_work(counts, start_time_s, share):
    oracle = Clairvoyant(required_replicas_by_second(counts, 10.0), start_time_s).ordered.sum()
    bound = bound_replica_seconds(counts, 10.0, share, start_time_s)
    assert len(counts) <= bound <= oracle + 1e-6
    assert bound <= bound_replica_seconds(counts, 10.0, share, start_time_s + 20) * 1.02
    # Without late requests it is the oracle's cost.
    assert bound_replica_seconds(counts, 10.0, 0.0, start_time_s, rounds=200) >= 0.97 * oracle


def test_a_window_may_miss_a_burst_that_is_within_its_share():
    """A second of 5 requests among 60 of 100 needs no second replica if 1% may be late."""
    counts = np.full(60, 100.0)
    counts[30] = 105.0
    assert bound_replica_seconds(counts, 100.0, 0.01, 5.0) == 60
    assert bound_replica_seconds(counts, 100.0, 0.0, 5.0) == pytest.approx(66, rel=0.01)
