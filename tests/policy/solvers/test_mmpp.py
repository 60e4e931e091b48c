"""The policy of least power under MMPP arrivals."""

import numpy as np
import pytest

from policy.batching_policy import BatchingPolicy
from policy.mmpp import Mmpp
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.mmpp import evaluate_mmpp
from policy.solvers import mmpp

PROFILE = Profile("m", "d", np.array([2.0, 2.5, 3.0, 3.5]), np.array([20.0, 25.0, 30.0, 35.0]))
PROCESS = Mmpp((200.0, 700.0), (0.1, 0.05))
OBJECTIVE = ServiceLevelObjective(12, 99)


@pytest.mark.slow
def test_the_policy_takes_hardly_more_power_than_the_best_of_a_grid():
    found = mmpp.solve(PROFILE, PROCESS, OBJECTIVE)
    assert found.meets_sla
    assert found.evaluation.service_level(12) >= 0.99
    powers = []
    for limit in (2, 3, 4):
        for wait_ms in (7.0, 8.5, 10.0):
            policy = BatchingPolicy.from_control_limit(limit, 4, wait_ms)
            tried = evaluate_mmpp(PROFILE, policy, PROCESS)
            if tried.service_level(12) >= 0.99:
                powers.append(tried.mean_power_w)
    assert found.evaluation.mean_power_w <= 1.005 * min(powers)


def test_where_no_policy_keeps_the_percentile_the_device_starts_at_once():
    found = mmpp.solve(PROFILE, PROCESS, ServiceLevelObjective(2.1, 99))
    assert not found.meets_sla
    assert found.policy.control_limit == 1
    waiting = evaluate_mmpp(PROFILE, BatchingPolicy.from_control_limit(2, 4, 1.0), PROCESS)
    assert found.evaluation.service_level(2.1) > waiting.service_level(2.1)
