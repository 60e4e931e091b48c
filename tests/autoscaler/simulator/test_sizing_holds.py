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
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

PROFILE = Profile.load(Path(__file__).parents[3] / "configs/profiles/googlenet-p4.json")
#: The same device, 20 times slower.
SLOW = Profile("slow", "device", 20 * PROFILE.latency_ms)


@pytest.mark.slow
@pytest.mark.parametrize("routing", list(Routing))
@pytest.mark.parametrize(("response_time_ms", "percentile"), [(27.0, 99.0), (50.0, 95.0)])
def test_a_fleet_at_its_sla_rate_keeps_the_sla(routing, response_time_ms, percentile):
    objective = ServiceLevelObjective(response_time_ms, percentile)
    curve = Scenario(PROFILE, objective, np.ones(1)).load_lateness_curve()
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
@pytest.mark.parametrize(
    ("profile", "response_time_ms", "seconds"),
    [(PROFILE, 12.0, 10), (PROFILE, 27.0, 10), (PROFILE, 100.0, 10), (SLOW, 500.0, 60)],
)
def test_a_fleet_serves_what_its_devices_can_within_the_sla(profile, response_time_ms, seconds):
    """What `LiveSizing.fleet_rate_per_s` counts on: the rest of the load is what is missed."""
    objective = ServiceLevelObjective(response_time_ms, 99.0)
    template = Scenario(profile, objective, np.ones(1))
    limits = template.replica_model().limits
    fleet_rate_per_s = 1e3 * limits.max_batch_size / limits.latency_ms[-1]
    assert fleet_rate_per_s >= template.load_lateness_curve().sla_rate_per_s
    for load in (1.0, 1.1):
        counts = poisson_counts(10 * load * fleet_rate_per_s, seconds, np.random.default_rng(3))
        scenario = replace(
            template,
            counts=counts,
            within_second=WithinSecond.UNIFORM,
            replicas=10,
            max_replicas=10,
        )
        in_time = simulate(scenario, FixedFleet(10)).service_level
        possible = min(1.0, 10 * fleet_rate_per_s / counts.mean())
        # Just above its rate, a fleet loses some answers to refusals that are tried nowhere else.
        assert 0.96 * possible < in_time < possible + 0.02
