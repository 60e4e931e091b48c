"""The rate that the live autoscaler sizes by keeps the SLA in a simulated fleet."""

from pathlib import Path

import numpy as np
import pytest

from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from simulator.arrivals import WithinSecond, poisson_counts
from simulator.autoscalers.fixed import FixedFleet
from simulator.engines.interface import Routing
from simulator.scenario import Scenario
from simulator.simulation import simulate

PROFILE = Profile.load(Path(__file__).parents[2] / "configs/profiles/googlenet-p4.json")


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
