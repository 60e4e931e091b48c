from pathlib import Path

import pytest

from autoscaler.simulator.policy_tables import policy_table
from policy.baseline_policies import reference_policy
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective, Weights
from policy.profile import Profile
from policy.table import source_hash

PROFILE = Profile.load(Path(__file__).parents[3] / "configs" / "profiles" / "googlenet-p4.json")
SLA = ServiceLevelObjective(100, 99)


@pytest.mark.parametrize("name", ["work-conserving", "static:8", "timeout:8:5"])
def test_a_baseline_policy_applies_at_every_rate(name):
    table = policy_table(PROFILE, SLA, name)
    for rate_per_s in (0.0, 1.0, 1000.0, 1e6):
        assert table.lookup(rate_per_s) == reference_policy(name, PROFILE)


@pytest.mark.slow
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
    assert policy_table(PROFILE, SLA, name).source_hash == source_hash(PROFILE, objective)


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
        policy_table(PROFILE, SLA, name)


def test_an_sla_that_is_too_short_is_infeasible():
    with pytest.raises(InfeasibleError):
        policy_table(PROFILE, ServiceLevelObjective(1, 99), "sla")
