import dataclasses
import math

import numpy as np
import pytest

from autoscaler.simulator.batching_names import parse_batching
from autoscaler.simulator.scenario import Scenario
from policy.baseline_policies import reference_policy
from policy.batcher.limits import ADMISSION_SHARE
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective, Weights
from policy.service_model import BatchingSettings
from policy.tables.table import PolicyTable
from policy.try_delays import TryDelays
from tests.support.profiles import GOOGLENET_P4

OBJECTIVE = ServiceLevelObjective(50.0, 99.0)


def scenario(**options):
    return Scenario(
        GOOGLENET_P4,
        OBJECTIVE,
        **{
            "counts": np.full(20, 1500.0),
            "batching": BatchingPolicy.from_control_limit(4, 32, 5.0),
            "max_replicas": 6,
            **options,
        },
    )


@pytest.mark.slow
def test_by_default_a_replica_has_the_limits_of_a_live_one():
    found = scenario(batching=None)
    # Half a millisecond goes on the way; four full batches of 10.8 ms fit into 97% of the rest.
    assert found.service.limits.max_queue_rows == 4 * 32
    assert found.service.limits.max_age_ms == pytest.approx(
        ADMISSION_SHARE * 49.5 - GOOGLENET_P4.latency_ms[-1]
    )
    assert isinstance(found.table, PolicyTable)
    assert scenario(batching=None).table is scenario(batching=None).table


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"counts": []}, "counts: must be one number for each second"),
        ({"counts": [1.0, -1.0]}, "counts: must be finite and at least 0"),
        ({"counts": [math.nan]}, "counts: must be finite and at least 0"),
        ({"seed": 1.5}, "seed: must be a whole number from 0"),
        ({"delays": TryDelays()}, "retries must be a number"),
        ({"settings": BatchingSettings(max_queue_rows=0)}, "max_queue_rows: must be a whole"),
        ({"settings": BatchingSettings(max_age_ms=-1.0)}, "max_age_ms: must be at least"),
        ({"replicas": 7}, "replicas: must be a whole number from 1 to 6"),
        ({"min_replicas": 7}, "max_replicas: must be a whole number from 7"),
        ({"routing": "nearest"}, "routing: must be one of random, power-of-two, least-connections"),
        ({"within_second": "lumps"}, "within_second: must be one of uniform, linear"),
        ({"batching": BatchingPolicy.from_control_limit(1, 33)}, "batches of 33"),
    ],
)
def test_a_value_out_of_range_is_reported_in_one_line(options, complaint):
    with pytest.raises(InvalidInputError, match=complaint) as caught:
        scenario(**options)
    assert "\n" not in str(caught.value)


def test_an_sla_shorter_than_any_batch_is_infeasible():
    with pytest.raises(InfeasibleError, match="the shortest batch"):
        dataclasses.replace(scenario(), batching=None, objective=ServiceLevelObjective(1.0, 99.0))


@pytest.mark.parametrize("name", ["work-conserving", "static:8", "timeout:8:5"])
def test_a_baseline_policy_applies_at_every_rate(name):
    settings, policy = parse_batching(name, GOOGLENET_P4)
    scenario = Scenario(GOOGLENET_P4, OBJECTIVE, np.ones(1), batching=policy, settings=settings)
    for rate_per_s in (0.0, 1.0, 1000.0, 1e6):
        assert scenario.table.lookup(rate_per_s) == reference_policy(name, GOOGLENET_P4)


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        # As in the live service, a tenth of the response time is left to the network.
        ("sla", ServiceLevelObjective(45.0, 99.0)),
        ("weights", Weights(1.0, 0.0)),
        ("weights:0.5", Weights(1.0, 0.5)),
    ],
)
def test_a_table_is_solved_for_the_objective_of_a_live_replica(name, objective):
    settings, policy = parse_batching(name, GOOGLENET_P4)
    assert policy is None
    assert settings.policy_objective(GOOGLENET_P4, OBJECTIVE) == objective


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fifo", "must be one of sla"),
        ("sla:5", "must be one of sla"),
        ("weights:x", "energy weight"),
        ("weights:-1", "energy weight"),
        ("static:64", "1 to 32"),
    ],
)
def test_an_unknown_name_is_rejected(name, message):
    with pytest.raises(InvalidInputError, match=message):
        parse_batching(name, GOOGLENET_P4)
