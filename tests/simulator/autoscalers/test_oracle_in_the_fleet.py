"""What the oracle plans is what a simulated fleet does and pays."""

import numpy as np
import pytest

from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from simulator.autoscalers.oracle import Clairvoyant, by_second, need_by_second, need_by_window
from simulator.fleet import StartTime
from simulator.run import Scenario, simulate

SIZES = np.arange(1, 33)
SLOW = Profile("googlenet", "slow", 20 * (1.052 + 0.3051 * SIZES))
OBJECTIVE = ServiceLevelObjective(500, 99)
RATE_PER_S = 140.0
OFFERED = np.rint(RATE_PER_S * (3 + 2.5 * np.sin(np.arange(240) / 17)))


def scenario(replicas: int, start_time_s: float) -> Scenario:
    return Scenario(
        SLOW,
        OBJECTIVE,
        OFFERED,
        batching=BatchingPolicy.from_control_limit(1, 32),
        start_time=StartTime(start_time_s),
        replicas=replicas,
    )


@pytest.mark.parametrize("start_time_s", [0, 7, 40])
def test_a_fleet_orders_has_and_pays_what_was_planned(start_time_s: int) -> None:
    need = need_by_second(OFFERED, RATE_PER_S)
    oracle = Clairvoyant(need, start_time_s)
    run = simulate(scenario(oracle.initial_replicas, start_time_s), oracle)
    assert run.ordered.tolist() == oracle.ordered.tolist()
    assert np.all(run.ready >= need)
    gone = int(np.sum(np.maximum(0, -np.diff(oracle.ordered))))
    drained_s = run.paid_replica_s - oracle.replica_seconds
    assert 0 <= drained_s <= gone * 1e-3 * OBJECTIVE.response_time_ms
    assert run.compliant().all()


def test_the_need_by_windows_complies_and_one_replica_less_does_not() -> None:
    def complies(replicas: np.ndarray) -> np.ndarray:
        schedule = Clairvoyant(by_second(replicas, OFFERED.size), 0)
        return simulate(scenario(schedule.initial_replicas, 0), schedule).compliant()

    found = need_by_window(complies, np.ones(4), np.full(4, 8))
    assert complies(found).all()
    for window in range(4):
        fewer = found - (np.arange(4) == window)
        assert not complies(fewer)[window]
