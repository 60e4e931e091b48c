"""The rate that the live autoscaler sizes by keeps the SLA in a simulated fleet."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoscaler.simulator.arrivals import WithinSecond, poisson_counts
from autoscaler.simulator.autoscalers.fixed import FixedFleet
from autoscaler.simulator.engines.interface import Routing
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import simulate
from autoscaler.sizing.rand_fleet import RandFleet
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.try_delays import RETRIES, TryDelays

PROFILE = Profile.load(Path(__file__).parents[3] / "configs/profiles/googlenet-p4.json")
#: The same device, 20 times slower.
SLOW = Profile("slow", "device", 20 * PROFILE.latency_ms)


@pytest.mark.slow
@pytest.mark.parametrize("routing", list(Routing))
@pytest.mark.parametrize(("response_time_ms", "percentile"), [(27.0, 99.0), (50.0, 95.0)])
def test_a_fleet_at_its_sla_rate_keeps_the_sla(routing, response_time_ms, percentile):
    objective = ServiceLevelObjective(response_time_ms, percentile)
    curve = Scenario(PROFILE, objective, np.ones(1)).load_lateness_curve
    counts = poisson_counts(3 * curve.sla_rate_per_s, 20, np.random.default_rng(3))
    scenario = Scenario(
        PROFILE,
        objective,
        counts,
        within_second=WithinSecond.UNIFORM,
        routing=routing,
        replicas=3,
        max_replicas=3,
    )
    assert simulate(scenario, FixedFleet(3)).service_level >= percentile / 100


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2, 4, 16])
@pytest.mark.parametrize(
    ("profile", "response_time_ms", "percentile"),
    [
        (PROFILE, 12.0, 99.0),
        (PROFILE, 27.0, 99.0),
        (PROFILE, 100.0, 99.0),
        (SLOW, 500.0, 99.0),
        (Profile("linear", "device", 20 + 3.0 * np.arange(1, 33)), 150.0, 99.0),
        (Profile("small", "device", 1 + 1.0 * np.arange(1, 9)), 30.0, 99.9),
    ],
)
def test_a_fleet_takes_what_rand_says_and_hardly_more(
    profile, response_time_ms, percentile, replicas
):
    objective = ServiceLevelObjective(response_time_ms, percentile)
    template = Scenario(profile, objective, np.ones(1), replicas=replicas, max_replicas=replicas)
    limits = template.service.limits
    curve = template.load_lateness_curve
    capacity_per_s = 1e3 * limits.max_batch_size / limits.latency_ms[limits.max_batch_size - 1]
    fleet = RandFleet(curve, capacity_per_s, response_time_ms, TryDelays(retries=RETRIES))
    rate_per_s = fleet.rate_within_sla_per_s(1 - percentile / 100, replicas)

    def in_time(factor: float) -> float:
        per_s = factor * replicas * rate_per_s
        counts = poisson_counts(per_s, max(5, round(5e4 / per_s)), np.random.default_rng(3))
        scenario = replace(template, counts=counts, within_second=WithinSecond.UNIFORM)
        return simulate(scenario, FixedFleet(replicas)).service_level

    assert in_time(1.0) >= percentile / 100
    if rate_per_s < 0.97 * capacity_per_s:  # the SLA bounds it, and not the backlog
        assert in_time(1.05) < percentile / 100
