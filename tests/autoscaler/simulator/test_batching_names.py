import numpy as np
import pytest

from autoscaler.simulator.batching_names import parse_batching
from autoscaler.simulator.scenario import Scenario
from policy.baseline_policies import reference_policy
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective, Weights
from tests.support.profiles import GOOGLENET_P4 as PROFILE

SLA = ServiceLevelObjective(100, 99)


@pytest.mark.parametrize("name", ["work-conserving", "static:8", "timeout:8:5"])
def test_a_baseline_policy_applies_at_every_rate(name):
    settings, policy = parse_batching(name, PROFILE)
    scenario = Scenario(PROFILE, SLA, np.ones(1), batching=policy, settings=settings)
    for rate_per_s in (0.0, 1.0, 1000.0, 1e6):
        assert scenario.table.lookup(rate_per_s) == reference_policy(name, PROFILE)


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        # As in the live service, a tenth of the response time is left to the network.
        ("sla", ServiceLevelObjective(90.0, 99.0)),
        ("weights", Weights(1.0, 0.0)),
        ("weights:0.5", Weights(1.0, 0.5)),
    ],
)
def test_a_table_is_solved_for_the_objective_of_a_live_replica(name, objective):
    settings, policy = parse_batching(name, PROFILE)
    assert policy is None
    assert settings.policy_objective(PROFILE, SLA) == objective


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "must be one of sla"),
        ("fifo", "must be one of sla"),
        ("sla:5", "must be one of sla"),
        ("weights:x", "energy weight"),
        ("weights:-1", "energy weight"),
        ("weights:", "energy weight"),
        ("static", "static:B"),
        ("static:64", "1 to 32"),
    ],
)
def test_an_unknown_name_is_rejected(name, message):
    with pytest.raises(InvalidInputError, match=message):
        parse_batching(name, PROFILE)
