"""The search for the longest wait, where batch times vary: coarse, and still right."""

from dataclasses import replace

import numpy as np
import pytest

from policy.latency_quantiles import LatencyQuantiles
from policy.objective import ServiceLevelObjective
from policy.optimization import solve
from policy.response_time.evaluation import evaluate
from tests.support.profiles import GOOGLENET_P4

QUANTILES = LatencyQuantiles(
    np.array([10.0, 50.0, 90.0, 99.0]),
    np.repeat(np.array([0.97, 1.0, 1.05, 1.3])[:, None], 32, axis=1),
)
VARYING = replace(GOOGLENET_P4, latency_quantiles=QUANTILES)


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.1, 0.6])
def test_a_policy_found_coarsely_keeps_the_sla_and_no_longer_wait_does(load):
    rate, objective = load * GOOGLENET_P4.capacity_per_s, ServiceLevelObjective(20, 99)
    policy = solve(VARYING, rate, objective).policy
    assert evaluate(VARYING, policy, rate).service_level(20) >= 0.99
    longer = replace(policy, max_wait_ms=policy.max_wait_ms + 0.02 * 20)
    assert evaluate(VARYING, longer, rate).service_level(20) < 0.99


def test_the_capacity_is_that_of_the_mean_batch_time():
    mean_ms = QUANTILES.means_ms(GOOGLENET_P4.latency_ms)
    assert mean_ms[-1] > GOOGLENET_P4.latency_ms[-1]
    assert VARYING.capacity_per_s == pytest.approx(32e3 / mean_ms[-1])
