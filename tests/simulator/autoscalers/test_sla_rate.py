import numpy as np
import pytest

from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time import evaluate
from simulator.autoscalers.sla_rate import sla_rate_per_s

P4 = Profile("googlenet", "tesla-p4", 1.052 + 0.3051 * np.arange(1, 33))


def test_the_sla_holds_just_at_it_and_not_above() -> None:
    rate = sla_rate_per_s(P4, ServiceLevelObjective(25, 99), 32)
    policy = BatchingPolicy.from_control_limit(1, 32)

    def level(at: float) -> float:
        found = evaluate(P4, policy, at, waiting_room=32)
        return (1 - found.full_probability) * found.service_level(25)

    assert level(rate) == pytest.approx(0.99, abs=1e-4)
    assert level(1.01 * rate) < 0.99 < level(0.99 * rate)


def test_no_rate_meets_what_a_batch_of_one_misses() -> None:
    assert sla_rate_per_s(P4, ServiceLevelObjective(1, 99), 32) == pytest.approx(0, abs=0.01)
