"""The one entry to the solvers: it chooses the right one."""

import pytest

from policy.objective import ServiceLevelObjective, Weights
from policy.optimization import solve
from policy.solvers import constrained, exact
from tests.support.profiles import GOOGLENET_P4

SLA = ServiceLevelObjective(10.0, 99.0)


@pytest.mark.parametrize(("objective", "solver"), [(Weights(1, 1), exact), (SLA, constrained)])
def test_the_objective_chooses_the_solver(objective, solver):
    found = solve(GOOGLENET_P4, 900.0, objective)
    assert found.policy == solver.solve(GOOGLENET_P4, 900.0, objective).policy


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("objective", [SLA, Weights(1, 1)])
@pytest.mark.parametrize("rate", [1e-9, 5e-324])
def test_the_rarest_requests_are_served_one_by_one(rate, objective):
    solution = solve(GOOGLENET_P4, rate, objective)
    assert solution.policy.control_limit == 1
    assert solution.mean_response_ms == pytest.approx(GOOGLENET_P4.latency_ms[0])
