"""The one entry to the solvers: it chooses the right one, and says what does not fit."""

import pytest

from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective, Weights
from policy.optimization import solve
from policy.solvers import constrained, exact
from tests.support.profiles import GOOGLENET_P4

CAPACITY = GOOGLENET_P4.capacity_per_s
SLA = ServiceLevelObjective(10.0, 99.0)


def test_weights_go_to_the_exact_solver():
    weights = Weights(1, 1)
    one = solve(GOOGLENET_P4, 900.0, weights)
    for other in (
        exact.solve(GOOGLENET_P4, 900.0, weights),
        solve(GOOGLENET_P4, 900.0, weights, method="exact"),
    ):
        assert one.policy == other.policy
        assert one.average_cost == other.average_cost


def test_a_service_level_goes_to_the_constrained_search():
    one = solve(GOOGLENET_P4, 900.0, SLA)
    other = constrained.solve(GOOGLENET_P4, 900.0, SLA)
    assert one.policy == other.policy
    assert one.meets_sla
    assert one.service_level >= 0.99
    assert one.percentile_ms <= 10


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("objective", [SLA, Weights(1, 1)])
@pytest.mark.parametrize("rate", [1e-9, 1e-300, 5e-324])
def test_the_rarest_requests_are_served_one_by_one(rate, objective):
    solution = solve(GOOGLENET_P4, rate, objective)
    assert solution.policy.control_limit == 1
    assert solution.mean_response_ms == pytest.approx(GOOGLENET_P4.latency_ms[0])


@pytest.mark.slow
@pytest.mark.parametrize("energy_weight", [0.0, 1.0, 500.0])
@pytest.mark.parametrize("load", [0.1, 0.9])
@pytest.mark.parametrize("method", ["policy_iteration", "relative_value_iteration"])
def test_the_reference_methods_agree_with_the_exact_solver(method, load, energy_weight):
    weights, rate = Weights(1, energy_weight), load * CAPACITY
    best = solve(GOOGLENET_P4, rate, weights)
    found = solve(GOOGLENET_P4, rate, weights, method=method)
    # Relative value iteration stops at a span of 0.01.
    tolerance = {"rel": 1e-10} if method == "policy_iteration" else {"abs": 0.01}
    assert found.average_cost == pytest.approx(best.average_cost, **tolerance)
    if method == "policy_iteration":
        assert found.mean_response_ms == pytest.approx(best.mean_response_ms, rel=1e-9)
        assert found.mean_power_w == pytest.approx(best.mean_power_w, rel=1e-9)


def test_the_options_of_the_reference_methods_are_those_of_the_paper():
    # Table I of arXiv 2301.12865: 70 states and an overflow cost of 100 suffice at load 0.9.
    found = solve(
        GOOGLENET_P4,
        0.9 * CAPACITY,
        Weights(1, 1),
        method="relative_value_iteration",
        max_queue_length=70,
        overflow_cost=100.0,
        span=0.01,
    )
    assert found.rounds == 1482
    assert found.policy.control_limit == 7


def test_waiting_for_ever_is_reported_as_too_small_a_truncation():
    with pytest.raises(InfeasibleError, match=r"raise overflow_cost .* or max_queue_length"):
        solve(
            GOOGLENET_P4,
            0.9 * CAPACITY,
            Weights(1, 500),
            method="policy_iteration",
            max_queue_length=70,
            overflow_cost=100.0,
        )


@pytest.mark.parametrize(
    ("objective", "options", "message"),
    [
        (Weights(), {"method": "simplex"}, "method: must be auto, exact, policy_iteration or"),
        (SLA, {"method": "exact"}, "method: must be auto for a service level objective"),
        (Weights(), {"max_queue_length": 70}, "max_queue_length, overflow_cost: belong to"),
        (SLA, {"overflow_cost": 1.0}, "max_queue_length, overflow_cost: belong to"),
    ],
)
def test_what_does_not_fit_is_refused(objective, options, message):
    with pytest.raises(InvalidInputError, match=message):
        solve(GOOGLENET_P4, 900.0, objective, **options)
