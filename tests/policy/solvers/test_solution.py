"""The numbers of a solution: the solver's own where it has them, evaluated where it has not."""

from dataclasses import replace

import numpy as np
import pytest

from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective, Weights
from policy.optimization import solve
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.solvers.solution import meets_sla
from tests.support.profiles import GOOGLENET_P4

SLA = ServiceLevelObjective(10.0, 99.0)


def test_under_weights_the_averages_are_those_of_the_solver_not_of_quadrature():
    """With batches up to 128, quadrature of the distribution is off by more than 1e-8."""
    sizes = np.arange(1, 129)
    profile = Profile("mostly", "fixed", 20 + 0.01 * sizes, 500.0 + sizes)
    rate, weights = 0.9 * profile.capacity_per_s, Weights(1, 1)
    solution = solve(profile, rate, weights)
    assert solution.mean_response_ms == solution.averages.mean_response_ms
    assert solution.mean_power_w == solution.averages.mean_power_w
    assert solution.average_cost == solution.averages.average_cost
    # The truncated queue needs no quadrature either.
    reference = solve(profile, rate, weights, method="policy_iteration")
    assert solution.mean_response_ms == pytest.approx(reference.mean_response_ms, rel=1e-11)
    evaluated_ms = solution.evaluation.mean_response_ms
    assert solution.mean_response_ms == pytest.approx(evaluated_ms, rel=1e-6)
    assert solution.mean_response_ms != pytest.approx(evaluated_ms, rel=1e-8)


def test_under_a_service_level_there_is_no_average_cost():
    solution = solve(GOOGLENET_P4, 300.0, SLA)
    with pytest.raises(InvalidInputError, match="no weights"):
        _ = solution.average_cost
    assert solution.weigh(Weights(2, 3)) == pytest.approx(
        2 * solution.mean_response_ms + 3 * solution.mean_power_w
    )


def test_under_weights_there_is_no_percentile_to_meet():
    solution = solve(GOOGLENET_P4, 300.0, Weights(1, 1))
    for name in ("meets_sla", "service_level", "percentile_ms"):
        with pytest.raises(InvalidInputError, match="no percentile"):
            getattr(solution, name)


IDLE = replace(GOOGLENET_P4, idle_power_w=8.0)


@pytest.mark.parametrize("load", [0.1, 0.8])
def test_an_idle_device_draws_its_idle_power(load):
    """Mean power is the batches' energy over the time, and 8 W of the time without a batch."""
    rate = load * IDLE.capacity_per_s
    policy = BatchingPolicy.from_control_limit(4, 32, 5.0)
    without, found = evaluate(GOOGLENET_P4, policy, rate), evaluate(IDLE, policy, rate)
    idle_fraction = 1 - without.device_busy_fraction
    assert found.mean_power_w == pytest.approx(without.mean_power_w + 8 * idle_fraction, rel=1e-12)


@pytest.mark.parametrize(("method", "rel"), [("exact", 1e-9), ("policy_iteration", 1e-6)])
def test_the_idle_power_counts_in_the_optimum(method, rel):
    """The optimum is that of batches that take their energy above the idle device's, plus 8 W."""
    rate = 0.3 * IDLE.capacity_per_s
    above = replace(GOOGLENET_P4, energy_mj=IDLE.energy_mj - 8 * IDLE.latency_ms)
    solution = solve(IDLE, rate, Weights(1, 2), method=method)
    expected = solve(above, rate, Weights(1, 2), method="exact")
    assert solution.mean_power_w == pytest.approx(expected.mean_power_w + 8, rel=rel)
    assert solution.average_cost == pytest.approx(expected.average_cost + 16, rel=rel)
    evaluation = evaluate(IDLE, solution.policy, rate)
    assert solution.mean_power_w == pytest.approx(evaluation.mean_power_w, rel=1e-3)


def test_idle_power_makes_waiting_save_less():
    rate, objective = 0.1 * IDLE.capacity_per_s, ServiceLevelObjective(10, 99)
    saved = []
    for profile in (GOOGLENET_P4, IDLE):
        chosen = solve(profile, rate, objective).mean_power_w
        greedy = BatchingPolicy.from_control_limit(1, 32)
        saved.append(1 - chosen / evaluate(profile, greedy, rate).mean_power_w)
    assert saved[0] == pytest.approx(0.316, abs=0.002)
    assert 0.1 < saved[1] < 0.18


@pytest.mark.parametrize(("margin", "meets"), [(-1e-6, True), (1e-6, False)])
def test_an_sla_is_met_up_to_its_percentile_and_no_further(margin, meets):
    evaluation = evaluate(GOOGLENET_P4, BatchingPolicy.from_control_limit(6, 32, 8.5), 600.0)
    percentile = 100 * evaluation.service_level(10.0)
    assert 80 < percentile < 99
    assert meets_sla(evaluation, ServiceLevelObjective(10.0, percentile + margin)) == meets
