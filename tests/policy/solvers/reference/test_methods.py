import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.errors import InfeasibleError
from policy.objective import Weights
from policy.optimization import solve
from policy.solvers.reference.methods import TOLERANCE, solve_within
from tests.support.batching.average_cost import average_cost
from tests.support.profiles import GOOGLENET_P4


@settings(max_examples=12)
@given(
    load=st.floats(0.1, 0.9), energy_weight=st.floats(0, 5), method=st.sampled_from(["rvi", "pi"])
)
def test_the_policy_costs_no_more_than_the_tolerance_above_the_exact_one(
    load, energy_weight, method
):
    rate_per_s, weights = load * GOOGLENET_P4.capacity_per_s, Weights(1, energy_weight)
    found = solve_within(GOOGLENET_P4, rate_per_s, weights, method, 1e3)
    assert found.overflow_cost_per_ms < TOLERANCE
    exact = solve(GOOGLENET_P4, rate_per_s, weights).average_cost
    cost = average_cost(GOOGLENET_P4, rate_per_s, weights, found.policy)
    # Value iteration ends when the cost is known to within 0.01.
    assert exact <= cost * (1 + 1e-9) <= exact + 0.01 + TOLERANCE
    assert found.average_cost == pytest.approx(exact, abs=0.01 + TOLERANCE)


def test_a_queue_that_is_too_short_is_refused():
    rate_per_s = 0.9 * GOOGLENET_P4.capacity_per_s
    with pytest.raises(InfeasibleError, match="a queue of 60 does not suffice"):
        solve_within(GOOGLENET_P4, rate_per_s, Weights(1, 1), "pi", 100, 60)
    assert solve_within(GOOGLENET_P4, rate_per_s, Weights(1, 1), "pi", 100, 70).rounds > 0
