import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.simulator.autoscalers.oracle import (
    Clairvoyant,
    clairvoyant_schedule,
    required_replicas_by_second,
)
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import simulate
from autoscaler.simulator.start_time import StartTime
from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from tests.support.autoscaling.fleet_views import view

FEW_SECONDS = st.lists(st.integers(0, 3), min_size=1, max_size=6)
MANY_SECONDS = st.lists(st.integers(0, 30), min_size=1, max_size=80)
START_TIMES_S = st.integers(0, 5)

P4 = Profile.load(Path(__file__).parents[4] / "configs" / "profiles" / "googlenet-p4.json")
SLOW = Profile("googlenet", "slow", 20 * P4.latency_ms)
OBJECTIVE = ServiceLevelObjective(500, 99)
RATE_PER_S = 140.0
OFFERED = np.rint(RATE_PER_S * (3 + 2.5 * np.sin(np.arange(240) / 17)))


def serving(ordered: np.ndarray, start_time_s: int) -> np.ndarray:
    """Return the replicas that serve in each second if the youngest are removed first."""
    ordered_at: list[int] = []
    served = []
    for second, count in enumerate(ordered):
        del ordered_at[count:]
        ordered_at += [second if second else -start_time_s] * (count - len(ordered_at))
        served.append(sum(second - at >= start_time_s for at in ordered_at))
    return np.array(served)


def cheapest_by_enumeration(required: list[int], start_time_s: int) -> int:
    """Return the least cost of all schedules, each followed second by second."""
    return min(
        sum(ordered)
        for ordered in itertools.product(range(max(required) + 2), repeat=len(required))
        if np.all(serving(np.array(ordered), start_time_s) >= required)
    )


@pytest.mark.slow
@settings(max_examples=40)
@given(required=FEW_SECONDS, start_time_s=st.integers(0, 3))
def test_no_schedule_is_cheaper(required, start_time_s) -> None:
    cost = clairvoyant_schedule(required, start_time_s).sum()
    assert cost == cheapest_by_enumeration(required, start_time_s)


@pytest.mark.slow
@given(required=MANY_SECONDS, start_time_s=START_TIMES_S)
def test_the_required_replicas_serve_in_time(required, start_time_s) -> None:
    ordered = clairvoyant_schedule(required, start_time_s)
    assert np.all(serving(ordered, start_time_s) >= required)


@given(required=MANY_SECONDS, start_time_s=START_TIMES_S)
def test_the_cost_lies_between_the_instant_bound_and_a_fixed_fleet(required, start_time_s) -> None:
    instant = Clairvoyant(required, 0).replica_seconds
    aware = Clairvoyant(required, start_time_s).replica_seconds
    assert sum(required) == instant <= aware <= max(required) * len(required)
    assert aware <= Clairvoyant(required, start_time_s + 1).replica_seconds


@given(required=MANY_SECONDS, start_time_s=START_TIMES_S)
def test_the_cost_is_the_sum_over_the_levels(required, start_time_s) -> None:
    """Add up the required seconds and, for each gap, the cheaper of keeping and starting."""
    cost = 0
    for level in range(1, max(required) + 1):
        seconds = np.flatnonzero(np.array(required) >= level)
        gaps = np.diff(np.concatenate(([-1], seconds))) - 1
        cost += seconds.size + int(np.minimum(gaps, start_time_s).sum())
    assert Clairvoyant(required, start_time_s).replica_seconds == cost


def test_follows_its_schedule_and_stays_at_its_end() -> None:
    oracle = Clairvoyant([1, 1, 1, 3], 2)
    assert oracle.initial_replicas == 1
    assert [oracle.replicas(view(second)) for second in (1, 2, 3, 4)] == [3, 3, 3, 3]


def test_the_required_replicas_by_second_cover_each_second() -> None:
    offered = [0, 99, 100, 101, 1000]
    assert required_replicas_by_second(offered, 100).tolist() == [1, 1, 1, 2, 10]
    assert required_replicas_by_second([0.0], 100, min_replicas=0).tolist() == [0]
    with pytest.raises(InvalidInputError):
        required_replicas_by_second([1.0], 0)


def scenario(replicas: int, start_time_s: float) -> Scenario:
    return Scenario(
        SLOW,
        OBJECTIVE,
        OFFERED,
        batching=BatchingPolicy.from_control_limit(1, 32),
        start_time=StartTime(start_time_s),
        replicas=replicas,
    )


@pytest.mark.slow
@pytest.mark.parametrize("start_time_s", [0, 7, 40])
def test_a_simulated_fleet_follows_and_pays_for_the_schedule(start_time_s: int) -> None:
    required = required_replicas_by_second(OFFERED, RATE_PER_S)
    oracle = Clairvoyant(required, start_time_s)
    run = simulate(scenario(oracle.initial_replicas, start_time_s), oracle)
    assert run.ordered.tolist() == oracle.ordered.tolist()
    assert np.all(run.ready >= required)
    removed = int(np.sum(np.maximum(0, -np.diff(oracle.ordered))))
    drained_s = run.paid_replica_s - oracle.replica_seconds
    assert 0 <= drained_s <= removed * 1e-3 * OBJECTIVE.response_time_ms
    assert run.compliant().all()
