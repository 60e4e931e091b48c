import json
from dataclasses import replace

import pytest

from policy.errors import InvalidInputError
from policy.event_loop import EventLoopCosts
from policy.objective import ServiceLevelObjective, Weights
from policy.profile import Profile
from policy.tables.solving import solve_table
from policy.tables.table import PolicyTable, source_hash
from tests.support.profiles import GOOGLENET_P4

CAPACITY = GOOGLENET_P4.capacity_per_s
OBJECTIVE = ServiceLevelObjective(10, 99)
SLA_TABLE = solve_table(GOOGLENET_P4, OBJECTIVE, [load * CAPACITY for load in (0.2, 0.4, 0.6, 0.8)])


def test_a_table_is_the_same_when_read_from_json():
    assert PolicyTable.from_dict(json.loads(json.dumps(SLA_TABLE.to_dict()))) == SLA_TABLE


@pytest.mark.parametrize("content", [[], {}, {"rates_per_s": [1], "policies": []}])
def test_malformed_content_is_no_table(content):
    with pytest.raises(InvalidInputError, match="policy table"):
        PolicyTable.from_dict(content)


@pytest.mark.parametrize(
    ("profile", "objective"),
    [
        (GOOGLENET_P4, ServiceLevelObjective(10, 98)),
        (GOOGLENET_P4, Weights(1, 1)),
        (Profile("googlenet", "tesla-p4", GOOGLENET_P4.latency_ms - 0.05), OBJECTIVE),
        (replace(GOOGLENET_P4, event_loop=EventLoopCosts(0.1, 0.1, shares_cpu=True)), OBJECTIVE),
    ],
)
def test_the_hash_tells_profiles_and_objectives_apart(profile, objective):
    assert source_hash(profile, objective) != source_hash(GOOGLENET_P4, OBJECTIVE)
