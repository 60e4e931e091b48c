import numpy as np
import pytest

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.event_loop import EventLoopCosts
from policy.objective import ServiceLevelObjective, Weights
from policy.optimization import solve
from policy.profile import Profile
from policy.response_time.evaluation import evaluate

FAST_MS = 0.025 + 0.001 * np.arange(1, 17)
COSTLY_EVENT_LOOP = EventLoopCosts(0.08, 0.15, shares_cpu=False)
FAST = Profile("mlp", "d", FAST_MS, event_loop=COSTLY_EVENT_LOOP)


@pytest.mark.parametrize("objective", [Weights(), ServiceLevelObjective(20, 99)])
def test_a_batch_that_costs_the_event_loop_150_us_waits_for_company(objective):
    """The device takes 26 µs, so that by itself it would start each request alone."""
    rate = 6000.0
    alone = solve(Profile("mlp", "d", FAST_MS), rate, Weights())
    assert alone.policy.control_limit == 1
    with pytest.raises(InfeasibleError, match="event loop"):
        evaluate(FAST, alone.policy, rate)
    solution = solve(FAST, rate, objective)
    assert solution.policy.control_limit > 1
    assert solution.evaluation.response_percentile_ms(99) <= 20


def test_the_control_limit_is_that_of_least_cost():
    rate = 7000.0
    solution = solve(FAST, rate, Weights())
    costs = []
    for limit in range(3, 9):
        try:
            policy = BatchingPolicy.from_control_limit(limit, 16)
            costs.append(evaluate(FAST, policy, rate).mean_response_ms)
        except InfeasibleError:
            costs.append(np.inf)
    assert solution.average_cost == pytest.approx(min(costs), rel=1e-9)
