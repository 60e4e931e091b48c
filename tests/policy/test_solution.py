from dataclasses import replace

import pytest

from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective, Weights
from policy.optimization import solve
from policy.response_time.evaluation import evaluate
from policy.solvers import constrained, exact
from policy.solvers.solution import meets_sla
from tests.support.profiles import GOOGLENET_P4

SLA = ServiceLevelObjective(10.0, 99.0)


@pytest.mark.parametrize(("objective", "solver"), [(Weights(1, 1), exact), (SLA, constrained)])
def test_the_objective_chooses_the_solver(objective, solver):
    found = solve(GOOGLENET_P4, 900.0, objective)
    assert found.policy == solver.solve(GOOGLENET_P4, 900.0, objective).policy


def test_what_was_solved_for_one_objective_has_no_figures_of_the_other():
    with pytest.raises(InvalidInputError, match="no weights"):
        _ = solve(GOOGLENET_P4, 300.0, SLA).average_cost
    for_weights = solve(GOOGLENET_P4, 300.0, Weights(1, 1))
    for name in ("meets_sla", "service_level", "percentile_ms"):
        with pytest.raises(InvalidInputError, match="no percentile"):
            getattr(for_weights, name)


IDLE = replace(GOOGLENET_P4, idle_power_w=8.0)


def test_the_idle_power_counts_in_the_optimum():
    """The optimum is that of batches that take their energy above the idle device's, plus 8 W."""
    rate = 0.3 * IDLE.capacity_per_s
    above = replace(GOOGLENET_P4, energy_mj=IDLE.energy_mj - 8 * IDLE.latency_ms)
    solution, expected = solve(IDLE, rate, Weights(1, 2)), solve(above, rate, Weights(1, 2))
    assert solution.mean_power_w == pytest.approx(expected.mean_power_w + 8, rel=1e-9)
    assert solution.average_cost == pytest.approx(expected.average_cost + 16, rel=1e-9)
    evaluation = evaluate(IDLE, solution.policy, rate)
    assert solution.mean_power_w == pytest.approx(evaluation.mean_power_w, rel=1e-3)


@pytest.mark.parametrize(("margin", "meets"), [(-1e-6, True), (1e-6, False)])
def test_an_sla_is_met_up_to_its_percentile_and_no_further(margin, meets):
    evaluation = evaluate(GOOGLENET_P4, BatchingPolicy.from_control_limit(6, 32, 8.5), 600.0)
    percentile = 100 * evaluation.service_level(10.0)
    assert 80 < percentile < 99
    assert meets_sla(evaluation, ServiceLevelObjective(10.0, percentile + margin)) == meets
