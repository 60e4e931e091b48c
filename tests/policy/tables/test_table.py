import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.batching_policy import BatchingPolicy
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


@settings(derandomize=True, deadline=None)
@given(load=st.floats(0, 1.2), index=st.floats(1, 200))
def test_bursts_lengthen_no_wait_and_raise_no_limit(load, index):
    steady = SLA_TABLE.lookup(load * CAPACITY)
    bursty = SLA_TABLE.lookup_bursty(load * CAPACITY, index, 0.1)
    assert SLA_TABLE.lookup_bursty(load * CAPACITY, 1.0, 0.1) is steady
    assert _longest_wait(bursty) <= _longest_wait(steady)
    assert bursty.control_limit <= steady.control_limit
    assert bursty.max_batch_size == GOOGLENET_P4.max_batch_size


def test_the_policy_for_bursts_has_the_shortest_wait_and_the_lowest_limit_of_their_rates():
    waits = [(5, 3.0), (9, 8.0), (7, 2.0), (12, 6.0)]
    policies = [BatchingPolicy.from_control_limit(limit, 16, wait) for limit, wait in waits]
    table = PolicyTable((100.0, 200.0, 300.0), tuple(policies))
    # Bursts of 150 + 1.2 √(9 · 150 · 10) = 289 per second; then of twice the mean.
    found = table.lookup_bursty(150.0, 10.0, 0.1)
    assert (found.control_limit, found.max_wait_ms) == (7, 2.0)
    found = table.lookup_bursty(50.0, 1000.0, 0.1)
    assert (found.control_limit, found.max_wait_ms) == (5, 3.0)
    assert table.lookup_bursty(250.0, 1.0, 0.1) == policies[2]


def test_behind_an_event_loop_bursts_have_no_request_wait_for_ever():
    """Beyond the last rate, an event loop beside the device carries full batches only."""
    at_once, full = (BatchingPolicy.from_control_limit(limit, 16) for limit in (1, 16))
    timed = BatchingPolicy.from_control_limit(16, 16, 19.8)
    table = PolicyTable((180.0, 460.0, 2700.0), (at_once, timed, full, full))
    # Bursts of twice the mean.
    for mean_per_s in (170.0, 400.0):
        found = table.lookup_bursty(mean_per_s, 1000.0, 0.1)
        assert (found.control_limit, found.max_wait_ms) == (16, 19.8)
    assert table.lookup_bursty(80.0, 1000.0, 0.1) == at_once
    assert table.lookup_bursty(2600.0, 1000.0, 0.1) == full


def _longest_wait(policy):
    if policy.control_limit == 1:
        return 0
    return math.inf if policy.max_wait_ms is None else policy.max_wait_ms


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
