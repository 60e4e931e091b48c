import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quantecon.markov.gth_solve import gth_solve

from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.objective import Weights
from policy.profile import Profile
from policy.solvers import exact
from policy.solvers.reference.methods import policy_iteration
from policy.solvers.reference.truncated import TruncatedSmdp
from policy.solvers.solution import Solution
from policy.tables.solving import solve_table
from tests.support.profiles import GOOGLENET_P4, gamma_times


def line(max_batch_size, load, weights, per_request=0.3051, fixed=1.052):
    sizes = np.arange(1, max_batch_size + 1)
    profile = Profile("m", "d", fixed + per_request * sizes, 19.60 + 19.90 * sizes)
    return profile, load * profile.capacity_per_s, weights


def steps(max_batch_size, width, load, weights):
    """A device that pads its batches: several sizes share the highest throughput."""
    padded = np.ceil(np.arange(1, max_batch_size + 1) / width)
    profile = Profile("m", "d", 0.4 + 1.6 * padded, 15 + 40 * padded)
    return profile, load * profile.capacity_per_s, weights


LEAP = Profile("leap", "d", np.array([1.0] * 4 + [6.0] * 4), np.full(8, 10.0))


def cost_of(smdp, actions):
    """Average cost by the elimination of Grassmann, Taksar and Heyman, which never subtracts."""
    # In reverse order: the far states are so rare that they must be computed last.
    visits = gth_solve(smdp.transition_matrix(actions)[::-1, ::-1])[::-1]
    states = np.arange(smdp.states)
    assert visits[-1] < 1e-18
    return (visits @ smdp.cost[states, actions]) / (visits @ smdp.period_ms[actions])


@pytest.mark.parametrize("load", [0.2, 0.6, 0.9])
@pytest.mark.parametrize("energy_weight", [0, 5])
def test_where_batch_times_vary_no_control_limit_costs_much_less(load, energy_weight):
    profile = gamma_times(replace(GOOGLENET_P4, idle_power_w=2.0), 0.5)
    rate_per_s, weights = load * profile.capacity_per_s, Weights(1, energy_weight)
    found = exact.solve(profile, rate_per_s, weights)
    for limit in (1, 2, 4, 8, 16, 32):
        policy = BatchingPolicy.from_control_limit(limit, 32)
        other = Solution(profile, rate_per_s, weights, policy)
        assert found.average_cost <= 1.01 * other.average_cost


def test_a_table_of_a_device_whose_batch_times_vary_is_solved_in_seconds():
    """It took minutes where the 99th percentile is four times the median."""
    began_s = time.process_time()
    solve_table(gamma_times(GOOGLENET_P4, 0.7), Weights())
    assert time.process_time() - began_s < 30


def brute_force(profile, rate, weights, max_queue_length):
    smdp = TruncatedSmdp(profile, rate, weights, max_queue_length, 1e7)
    return cost_of(smdp, policy_iteration(smdp).actions)


def test_the_setting_of_the_paper():
    solution = exact.solve(*line(32, 0.9, Weights(1, 1)))
    assert solution.average_cost == pytest.approx(66.134, abs=5e-4)
    assert solution.policy.control_limit == 7
    assert solution.average_cost == pytest.approx(
        solution.mean_response_ms + solution.mean_power_w, rel=1e-14
    )


@pytest.mark.parametrize("load", [0.01, 0.5, 0.9, 0.99])
def test_without_batching_it_is_the_queue_of_pollaczek_and_khinchine(load):
    profile = Profile("m", "d", np.array([4.0]), np.array([10.0]))
    rate_per_s = load * profile.capacity_per_s
    solution = exact.solve(profile, rate_per_s, Weights(1, 2))
    mean_response_ms = 4.0 + 1e-3 * rate_per_s * 16.0 / (2 * (1 - load))
    assert solution.mean_response_ms == pytest.approx(mean_response_ms, rel=1e-12)
    assert solution.mean_power_w == pytest.approx(1e-2 * rate_per_s, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "max_queue_length"),
    [
        (line(32, 0.05, Weights(1, 1)), 120),
        (line(32, 0.95, Weights(1, 0)), 700),
        (line(256, 0.9, Weights(1, 20)), 560),
        (steps(30, 8, 0.9, Weights(1, 5)), 600),
        (steps(256, 64, 0.6, Weights(1, 1)), 450),
        # Batches of 4 have the highest throughput, batches of 8 the least energy.
        ((LEAP, 2000.0, Weights(1, 10)), 600),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_the_average_cost_is_that_of_a_long_truncation_to_1e_9(problem, max_queue_length):
    profile, rate, weights = problem
    expected = brute_force(profile, rate, weights, max_queue_length)
    assert exact.solve(*problem).average_cost == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@given(
    latency_steps=st.lists(st.sampled_from([0.0, 0.1, 0.5, 2.0]), max_size=11),
    energy_steps=st.lists(st.sampled_from([0.0, 1.0, 7.0]), min_size=11, max_size=11),
    load=st.floats(0.02, 0.8),
    energy_weight=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
)
def test_the_average_cost_is_that_of_the_policy_and_no_policy_costs_less(
    latency_steps, energy_steps, load, energy_weight
):
    latency_ms = 1 + np.cumsum([0, *latency_steps])
    energy_mj = 5 + np.cumsum([0, *energy_steps])[: latency_ms.size]
    profile = Profile("m", "d", latency_ms, energy_mj)
    rate, weights = load * profile.capacity_per_s, Weights(1, energy_weight)
    solution = exact.solve(profile, rate, weights)

    smdp = TruncatedSmdp(profile, rate, weights, 250, 1e4)
    own = np.array([solution.policy.batch_size(min(q, 250)) for q in range(smdp.states)])
    assert solution.average_cost == pytest.approx(cost_of(smdp, own), rel=1e-10)
    best = policy_iteration(smdp).actions
    assert solution.average_cost <= cost_of(smdp, best) * (1 + 1e-10)


def test_a_start_ends_in_the_same_policy():
    problem = line(32, 0.5, Weights(1, 1))
    start = exact.solve(*line(32, 0.45, Weights(1, 1))).policy
    assert exact.solve(*problem, start=start).policy == exact.solve(*problem).policy


def test_more_weight_on_energy_saves_power_and_costs_response():
    weights = [0, 0.1, 1, 10, 100, 1000]
    solutions = [exact.solve(*line(32, 0.3, Weights(1, w))) for w in weights]
    powers = [solution.mean_power_w for solution in solutions]
    responses = [solution.mean_response_ms for solution in solutions]
    assert powers == sorted(powers, reverse=True)
    assert responses == sorted(responses)
    assert powers[0] > powers[-1] + 5


def test_at_low_load_a_rare_long_queue_is_split():
    """The optimum is no control limit: two half batches, the first of which leaves early."""
    actions = exact.solve(*line(32, 0.05, Weights(1, 0))).policy.actions
    assert actions[2] == 2
    assert 0 < actions[32] < 32


def test_without_energy_the_power_is_not_known():
    profile = Profile("m", "d", np.array([1.0, 1.2]))
    assert exact.solve(profile, 500.0, Weights()).mean_power_w is None
    with pytest.raises(InvalidInputError, match="must be 0 for a profile without energy_mj"):
        exact.solve(profile, 500.0, Weights(1, 1))
