import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.power_limit import under_power_limit
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.service_model import BatchingSettings, service_model
from policy.tables.file import TableFile
from policy.tables.power import LOADS, MULTIPLES, PowerTable, check_power_limit, solve_power_table
from policy.tables.table import PolicyTable
from policy.try_delays import TryDelays

SIZES = np.arange(1, 9)
LATENCY_MS = 2.0 + 0.5 * SIZES
PROFILE = Profile("m", "d", LATENCY_MS, 10 * LATENCY_MS + 60 + 20.0 * SIZES, idle_power_w=10.0)
SLA = ServiceLevelObjective(20.0, 99.0)
SERVICE = service_model(PROFILE, SLA, TryDelays())


@pytest.fixture(scope="module")
def table():
    return solve_power_table(PROFILE, SERVICE.batching_sla)


@pytest.mark.slow
@given(st.floats(0.05, 1.5), st.integers(1, 20), st.floats(0.2, 1.2))
def test_the_power_is_within_the_ceiling_and_a_higher_one_holds_no_less(table, load, needed, share):
    rate_per_s = load * needed * PROFILE.capacity_per_s
    limit_w = needed * share * table.full_power_w
    replicas, multiple = table.replicas_within(limit_w, rate_per_s, needed)
    assert 1 <= replicas <= needed
    assert table.replicas_within(1.1 * limit_w, rate_per_s, needed)[1] <= multiple
    if np.isinf(multiple) or load >= 1:
        assert replicas == 1 or replicas * table.full_power_w <= limit_w
        return
    within = table.multiple_within(rate_per_s / replicas, limit_w / replicas)
    policy = table.policies_for(within).lookup(rate_per_s / replicas)
    found = evaluate(PROFILE, policy, rate_per_s / replicas)
    # The power is interpolated between loads, and a cell has the policy of its upper end.
    assert replicas * found.mean_power_w <= 1.03 * limit_w


def test_a_table_survives_a_report_and_a_file():
    cells = range(len(LOADS) * len(MULTIPLES))
    policies = tuple(BatchingPolicy.from_control_limit(1 + cell % 8, 8) for cell in cells)
    table = PowerTable(100.0, 10.0, 46.0, tuple(map(float, cells)), (*policies, policies[0]))
    assert PowerTable.from_dict(table.to_dict()) == table
    assert PowerTable.from_floats(table.to_floats()).power_w == table.power_w
    assert len(table.to_floats()) == PowerTable.SIZE


@pytest.mark.slow
def test_the_fleet_batches_for_the_sla_that_the_ceiling_leaves(table):
    place = LOADS.index(0.7) * len(MULTIPLES)
    for_the_sla_w, least_w = (table.power_w[place + MULTIPLES.index(one)] for one in (1.0, 10.0))
    rate_per_s, between_w = 4 * 0.7 * PROFILE.capacity_per_s, 2 * (for_the_sla_w + least_w)
    fleet = under_power_limit(SERVICE, between_w, rate_per_s, 4, table)
    left = fleet.service.client_sla
    assert left.response_time_ms > SLA.response_time_ms
    assert left.in_words() in fleet.in_words
    ample = under_power_limit(SERVICE, 4.1 * for_the_sla_w, rate_per_s, 4, table)
    assert ample.service.client_sla == SLA


@pytest.mark.slow
@given(st.floats(0.05, 0.9), st.integers(1, 20), st.floats(0.25, 1.2))
def test_replicas_admit_what_the_ceiling_is_said_to_hold(table, load, needed, share):
    rate_per_s, limit_w = load * needed * PROFILE.capacity_per_s, needed * share * 46
    fleet = under_power_limit(SERVICE, limit_w, rate_per_s, needed, table)
    if "the rest is refused" not in fleet.in_words:
        assert fleet.service.client_sla.in_words() in fleet.in_words


@pytest.mark.slow
def test_the_settings_of_a_service_hold_under_a_ceiling(table):
    few = BatchingSettings(batch_size_limit=3, max_queue_rows=5)
    service = service_model(PROFILE, SLA, TryDelays(), few)
    fleet = under_power_limit(service, 100.0, PROFILE.capacity_per_s, 4, table)
    limits = fleet.service.limits
    assert (limits.max_batch_size, limits.max_queue_rows) == (3, 5)
    assert max(policy.max_batch_size for policy in fleet.service.table.policies) == 3


def test_a_ceiling_and_a_table_of_policies_are_not_given_together():
    policy = BatchingPolicy.from_control_limit(1, 8)
    table = TableFile(PROFILE, SERVICE.batching_sla, PolicyTable((1.0,), (policy, policy)))
    service = service_model(PROFILE, SLA, TryDelays(), BatchingSettings(table=table))
    with pytest.raises(InvalidInputError, match="omit the policy's table"):
        under_power_limit(service, 100.0, 1.0, 1)


def test_a_ceiling_that_cannot_be_held_is_refused():
    with pytest.raises(InvalidInputError, match="must be above the 10 W of one idle replica"):
        check_power_limit(PROFILE, 10.0)
    with pytest.raises(InvalidInputError, match="the profile has no energy"):
        check_power_limit(Profile("m", "d", LATENCY_MS), 10.0)
