import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.simulator.autoscalers.bound import bound_replica_seconds
from autoscaler.simulator.autoscalers.oracle import Clairvoyant, required_replicas_by_second
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import simulate
from autoscaler.simulator.start_time import StartTime
from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

P4 = Profile.load(Path(__file__).parents[4] / "configs" / "profiles" / "googlenet-p4.json")
SLOW = Profile("googlenet", "slow", 20 * P4.latency_ms)
COUNTS = st.lists(st.integers(0, 12), min_size=1, max_size=5)
MANY_COUNTS = st.lists(st.integers(0, 200), min_size=1, max_size=200)


def cost_of(schedule, start_time_s: float) -> float:
    """Return what a schedule of serving replicas costs; the first ones serve at once."""
    starts = np.maximum(0, np.diff(schedule)).sum()
    return float(np.sum(schedule) + start_time_s * starts)


def optimum_by_enumeration(counts, capacity, share, start_time_s, window_s) -> float:
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
    counts=COUNTS,
    share=st.sampled_from([0.0, 0.05, 0.2]),
    start_time_s=st.sampled_from([0.0, 1.0, 3.0]),
    window_s=st.sampled_from([2, 3]),
)
def test_no_schedule_that_holds_its_windows_costs_less(
    counts, share, start_time_s, window_s
) -> None:
    bound = bound_replica_seconds(counts, 4.0, share, start_time_s, window_s=window_s)
    assert bound <= optimum_by_enumeration(counts, 4.0, share, start_time_s, window_s) + 1e-6


@settings(max_examples=20)
@given(counts=MANY_COUNTS, start_time_s=st.integers(0, 40))
def test_without_late_requests_it_is_the_cost_of_the_oracle_by_seconds(
    counts, start_time_s
) -> None:
    oracle = Clairvoyant(required_replicas_by_second(counts, 10.0), start_time_s).replica_seconds
    bound = bound_replica_seconds(counts, 10.0, 0.0, start_time_s, rounds=200)
    assert 0.97 * oracle <= bound <= oracle + 1e-6


@settings(max_examples=20)
@given(counts=MANY_COUNTS, start_time_s=st.integers(0, 40), share=st.floats(0, 0.2))
def test_it_is_below_the_oracle_by_seconds_and_above_the_work(counts, start_time_s, share) -> None:
    oracle = Clairvoyant(required_replicas_by_second(counts, 10.0), start_time_s).replica_seconds
    bound = bound_replica_seconds(counts, 10.0, share, start_time_s)
    assert len(counts) <= bound <= oracle + 1e-6
    assert bound <= bound_replica_seconds(counts, 10.0, share, start_time_s + 20) * 1.02


def test_a_window_may_miss_a_burst_that_is_within_its_share() -> None:
    """A second of 5 requests among 60 of 100 needs no second replica if 1% may be late."""
    counts = np.full(60, 100.0)
    counts[30] = 105.0
    assert bound_replica_seconds(counts, 100.0, 0.01, 5.0) == 60
    assert bound_replica_seconds(counts, 100.0, 0.0, 5.0) == pytest.approx(66, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_no_simulated_fleet_costs_less_than_the_strict_bound(seed: int) -> None:
    """Follow all schedules of six seconds, in windows of two, through the simulator.

    A fleet has the SLA's response time T longer to answer the requests of a second. So S(t) =
    max(R(t), R(t + 1)) replicas answer at most (1 + T) c S(t) of them, and S costs as much as R if
    each start costs a second less.
    """
    window_s, share, seconds = 2, 0.1, 6
    objective = ServiceLevelObjective(500, 100 * (1 - share))
    counts = np.rint(np.random.default_rng(seed).uniform(0, 2.5 * SLOW.capacity_per_s, seconds))
    costs = []
    for schedule in itertools.product(range(1, 4), repeat=seconds):
        scenario = Scenario(
            SLOW,
            objective,
            counts,
            batching=BatchingPolicy.from_control_limit(1, SLOW.max_batch_size),
            start_time=StartTime(0),
            replicas=schedule[0],
            seed=seed,
        )
        run = simulate(scenario, _Enumerated(schedule))
        starts = np.arange(0, seconds, window_s)
        in_time, offered = (np.add.reduceat(x, starts) for x in (run.in_time, run.offered))
        if np.all(in_time >= (1 - share) * offered):
            costs.append(cost_of(schedule, 1.0))
    capacity_per_s = (1 + 0.5) * SLOW.capacity_per_s
    assert bound_replica_seconds(counts, capacity_per_s, share, 0.0, window_s=window_s) <= min(
        costs
    )


class _Enumerated:
    """Has `schedule[t]` replicas in second t; a decision takes effect at the end of its second."""

    name = "enumerated"

    def __init__(self, schedule) -> None:
        self._schedule = schedule

    def replicas(self, view) -> int:
        return int(self._schedule[min(int(view.now_s), len(self._schedule) - 1)])
