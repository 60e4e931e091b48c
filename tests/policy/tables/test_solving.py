import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.errors import InvalidInputError
from policy.event_loop import EventLoopCosts
from policy.objective import ServiceLevelObjective, Weights
from policy.optimization import solve
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.solvers import exact
from policy.solvers.solution import Solution
from policy.tables.solving import solve_table
from tests.support.batching.average_cost import average_cost
from tests.support.profiles import GOOGLENET_P4

CAPACITY = GOOGLENET_P4.capacity_per_s
TABLE = solve_table(GOOGLENET_P4, Weights(1, 1))
#: Behind event loops of their own, which single requests would overload.
P4_BEHIND_EVENT_LOOP = replace(GOOGLENET_P4, event_loop=EventLoopCosts(0.6, 0.5, shares_cpu=False))
FAST_BEHIND_EVENT_LOOP = Profile(
    "mlp",
    "d",
    0.025 + 0.001 * np.arange(1, 17),
    event_loop=EventLoopCosts(0.1, 0.15, shares_cpu=False),
)


def test_a_cell_has_the_policy_of_its_upper_end():
    rates = (200.0, 900.0, 0.9 * CAPACITY)
    table = solve_table(GOOGLENET_P4, Weights(1, 1), rates)
    for low, high in [(200.0, 900.0), (900.0, 0.9 * CAPACITY)]:
        policy = exact.solve(GOOGLENET_P4, high, Weights(1, 1)).policy
        assert table.lookup(low) == policy
        assert table.lookup(math.nextafter(high, 0)) == policy
    assert table.lookup(2500).control_limit == 7


@given(rate=st.floats(0, allow_infinity=True) | st.sampled_from([0.0, 1e-300, 1e300]))
def test_every_rate_has_a_policy_that_keeps_up_with_full_batches(rate):
    policy = TABLE.lookup(rate)
    assert policy.batch_size(10_000) == 32
    assert 1 <= policy.control_limit <= 32


@pytest.mark.parametrize("rate", [0.0, 0.995 * CAPACITY, math.inf])
def test_beyond_the_grid_a_free_device_starts_at_once(rate):
    policy = TABLE.lookup(rate)
    assert [policy.batch_size(q) for q in (1, 2, 31, 32, 33)] == [1, 2, 31, 32, 32]
    profile = Profile("m", "d", np.array([1.0, 1.0, 9.0]))
    assert solve_table(profile, Weights(), [100.0]).lookup(1e9).max_batch_size == 2


@pytest.mark.slow
def test_between_the_rates_the_cost_is_near_the_optimum():
    """The limit rises from 1 to 2 at a load near 0.08: one cell up to there would lose 13%."""
    loads = np.append(np.linspace(0.05, 0.1, 51), np.random.default_rng(5).uniform(0.01, 0.95, 12))
    for rate in loads * CAPACITY:
        cost = average_cost(GOOGLENET_P4, rate, Weights(1, 1), TABLE.lookup(rate))
        assert cost <= 1.01 * exact.solve(GOOGLENET_P4, rate, Weights(1, 1)).average_cost


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "weights"),
    [
        (P4_BEHIND_EVENT_LOOP, Weights(1, 1)),
        (FAST_BEHIND_EVENT_LOOP, Weights()),
    ],
)
def test_an_event_loop_keeps_up_with_each_policy_at_no_more_cost_than_alone(profile, weights):
    """The device alone would start single requests, which the event loop cannot keep up with."""
    rates = np.array([0.3, 0.6, 0.8, 0.9]) * profile.capacity_per_s
    table = solve_table(profile, weights, rates)
    assert table.policies[-2].control_limit > 1
    for rate in rates[1:]:
        policy = table.lookup(math.nextafter(rate, 0))
        alone = solve(profile, rate, weights)
        cost = Solution(profile, rate, weights, policy).average_cost
        assert cost <= 1.01 * alone.average_cost


@pytest.mark.slow
def test_every_rate_that_can_keep_the_objective_does():
    objective = ServiceLevelObjective(10, 99)
    table = solve_table(GOOGLENET_P4, objective, np.linspace(0.1, 0.9, 9) * CAPACITY)
    greedy = table.lookup(math.inf)
    kept = 0
    for rate in np.random.default_rng(6).uniform(0.01, 0.95, 25) * CAPACITY:
        if evaluate(GOOGLENET_P4, greedy, rate).service_level(10) >= 0.99:
            level = evaluate(GOOGLENET_P4, table.lookup(rate), rate).service_level(10)
            assert level >= 0.99 - 1e-9
            kept += 1
    assert kept > 10


@pytest.mark.slow
def test_a_policy_that_misses_the_objective_within_its_cell_gives_way():
    """The best policy at a load of 0.7 has 96.6% in time at 0.6: the limit is reached later."""
    objective, low, high = ServiceLevelObjective(30, 99), 0.6 * CAPACITY, 0.7 * CAPACITY
    above = solve(GOOGLENET_P4, high, objective)
    assert above.meets_sla
    table = solve_table(GOOGLENET_P4, objective, [low, high])
    for rate in (low, (low + high) / 2, math.nextafter(high, 0)):
        level = evaluate(GOOGLENET_P4, table.lookup(rate), rate).service_level(30)
        assert level >= 0.99 - 1e-9
    assert evaluate(GOOGLENET_P4, above.policy, low).service_level(30) < 0.97


@pytest.mark.parametrize(
    ("profile", "objective", "loads"),
    [
        # At the lower end 74% are in time if the device starts at once, at the upper end none is.
        (GOOGLENET_P4, ServiceLevelObjective(1.6, 90), (0.07, 0.08, 0.1, 0.15)),
        # 90% are in time up to a load of 0.0477, which is within a cell.
        (
            Profile("three", "sizes", np.array([2.99, 3.12, 3.2]), 20.0 + 20 * np.arange(1, 4)),
            ServiceLevelObjective(3.840255974373031, 90),
            (0.04, 0.05, 0.06, 0.1),
        ),
    ],
)
def test_where_a_cell_cannot_keep_the_objective_as_many_as_possible_are_in_time(
    profile, objective, loads
):
    rates = np.array(loads) * profile.capacity_per_s
    table = solve_table(profile, objective, rates)
    greedy = table.lookup(math.inf)
    for rate in np.linspace(0.02, rates[-1] * 0.999, 40):
        at_once = evaluate(profile, greedy, rate).service_level(objective.response_time_ms)
        found = evaluate(profile, table.lookup(rate), rate)
        target = objective.percentile / 100
        level = found.service_level(objective.response_time_ms)
        assert level >= min(at_once, target) - 1e-6


@pytest.mark.parametrize("rates", [[], [0.0], [1.0, 1.0], [math.inf]])
def test_rates_that_do_not_increase_are_refused(rates):
    with pytest.raises(InvalidInputError, match="policy table: rates must"):
        solve_table(GOOGLENET_P4, Weights(), rates)
