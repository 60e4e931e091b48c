"""The evaluation of policies against closed forms, a simulation, and laws of queues."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import Weights
from policy.optimization import solve
from policy.profile import Profile
from policy.response_time.control_limit_response import ControlLimitResponse
from policy.response_time.evaluation import evaluate
from tests.support.profiles import GOOGLENET_P4

CAPACITY = GOOGLENET_P4.capacity_per_s


def one_by_one(batch_time_ms):
    return Profile("one", "by one", np.array([batch_time_ms]), np.array([30.0]))


def counted(evaluation):
    """Return the requests per start of a batch that the exact distribution counts."""
    assert isinstance(evaluation.response_times, ControlLimitResponse)
    return evaluation.response_times.count


def crommelin(response_time_ms, arrival_rate, batch_time_ms):
    """M/D/1: P(W ≤ t) = (1 - ρ) Σ_k (λ(kD - t))^k / k! e^(-λ(kD - t)), k ≤ t / D."""
    wait_ms = response_time_ms - batch_time_ms
    if wait_ms < 0:
        return 0.0
    total = math.fsum(
        (arrival_rate * (k * batch_time_ms - wait_ms)) ** k
        / math.factorial(k)
        * math.exp(-arrival_rate * (k * batch_time_ms - wait_ms))
        for k in range(int(wait_ms / batch_time_ms) + 1)
    )
    return (1 - arrival_rate * batch_time_ms) * total


@pytest.mark.parametrize("traffic_intensity", [0.05, 0.3, 0.6, 0.9])
def test_without_batching_it_is_the_distribution_of_crommelin(traffic_intensity):
    evaluation = evaluate(
        one_by_one(2.0), BatchingPolicy.from_control_limit(1, 1), 500 * traffic_intensity
    )
    times = np.linspace(0.1, 24, 240)
    expected = [crommelin(t, traffic_intensity / 2, 2.0) for t in times]
    assert_allclose(evaluation.cdf(times), expected, atol=2e-8)


@pytest.mark.parametrize("traffic_intensity", [0.05, 0.5, 0.95, 0.99, 0.999])
def test_without_batching_the_mean_is_that_of_pollaczek_and_khinchine(traffic_intensity):
    evaluation = evaluate(
        one_by_one(2.0), BatchingPolicy.from_control_limit(1, 1), 500 * traffic_intensity
    )
    expected = 2.0 + 2.0 * traffic_intensity / (2 * (1 - traffic_intensity))
    assert evaluation.mean_response_ms == pytest.approx(expected, rel=1e-6)
    assert evaluation.device_busy_fraction == pytest.approx(traffic_intensity, rel=1e-10)


def test_at_an_instant_device_only_the_control_limit_is_waited_for():
    # The i-th of 4 waits for 4 - i exponential times: the mean of 0, 1, 2, 3 of them is 1.5.
    instant = Profile("an", "instant", np.full(4, 1e-9))
    evaluation = evaluate(instant, BatchingPolicy.from_control_limit(4, 4), 1000.0)
    assert evaluation.mean_response_ms == pytest.approx(1.5, rel=1e-6)
    t = np.array([0.5, 1.0, 3.0])
    erlang = [np.exp(-t) * sum(t**j / math.factorial(j) for j in range(k)) for k in range(4)]
    assert_allclose(evaluation.cdf(t), 1 - np.mean(erlang, axis=0), atol=1e-5)


@pytest.mark.parametrize(
    ("control_limit", "max_wait_ms", "p99_ms", "power_w"),
    [(1, None, 3.0, 11.3), (2, None, 14.9, 8.8), (8, 8.0, 10.9, 7.6)],
)
def test_googlenet_on_a_p4_at_a_tenth_of_its_capacity(control_limit, max_wait_ms, p99_ms, power_w):
    # The second policy is the optimum for the weights 1 and 1.
    policy = BatchingPolicy.from_control_limit(control_limit, 32, max_wait_ms)
    evaluation = evaluate(GOOGLENET_P4, policy, 0.1 * CAPACITY)
    assert evaluation.response_percentile_ms(99) == pytest.approx(p99_ms, abs=0.05)
    assert evaluation.mean_power_w == pytest.approx(power_w, abs=0.05)


LEAVING_SOME = BatchingPolicy(tuple(n if n < 4 else 4 if n < 8 else 8 for n in range(9)), None)
PADDED = tuple(0 if n < 4 else 4 if n < 8 else 8 if n < 16 else 16 for n in range(17))


systems = st.tuples(
    st.integers(1, 12),
    st.floats(0.01, 3.0),
    st.floats(0.1, 5.0),
    st.floats(0.05, 0.95),
    st.one_of(st.none(), st.floats(0.0, 40.0)),
    st.data(),
)


@given(systems)
def test_every_request_is_counted_once(system):
    size, per_request, fixed, traffic_intensity, max_wait_ms, data = system
    profile = Profile("a", "line", fixed + per_request * np.arange(1, size + 1))
    limit = data.draw(st.integers(1, size))
    rate = traffic_intensity * 1e3 * size / profile.latency_ms[-1]
    policy = BatchingPolicy.from_control_limit(limit, size, max_wait_ms)
    evaluation = evaluate(profile, policy, rate)
    # The distribution and the embedded chain count requests in different ways.
    assert counted(evaluation) == pytest.approx(evaluation.mean_batch_size, rel=1e-5)
    times = np.linspace(0, 5 * profile.latency_ms[-1] + 100, 200)
    cdf = evaluation.cdf(times)
    assert np.all(np.diff(cdf) >= -1e-7)
    assert cdf[0] == 0
    assert evaluation.service_level(profile.latency_ms[0] * 0.999) == 0
    assert evaluation.batch_size_probabilities.sum() == pytest.approx(1)


@pytest.mark.slow
@given(systems, st.floats(1, 99.9))
def test_a_percentile_is_the_least_time_with_that_share_of_requests(system, percentile):
    size, per_request, fixed, traffic_intensity, max_wait_ms, data = system
    profile = Profile("a", "line", fixed + per_request * np.arange(1, size + 1))
    limit = data.draw(st.integers(1, size))
    rate = traffic_intensity * 1e3 * size / profile.latency_ms[-1]
    evaluation = evaluate(
        profile, BatchingPolicy.from_control_limit(limit, size, max_wait_ms), rate
    )
    reached_ms = evaluation.response_percentile_ms(percentile)
    assert evaluation.service_level(reached_ms) >= percentile / 100
    assert evaluation.service_level(reached_ms * (1 - 1e-6)) < percentile / 100


@pytest.mark.slow
@settings(max_examples=30)
@given(st.floats(0.01, 100), st.floats(0.05, 0.9))
def test_the_unit_of_time_does_not_matter(unit, traffic_intensity):
    rate = traffic_intensity * CAPACITY
    policy = BatchingPolicy.from_control_limit(5, 32, 4.0)
    scaled_policy = BatchingPolicy.from_control_limit(5, 32, 4.0 * unit)
    scaled = Profile("a", "b", GOOGLENET_P4.latency_ms * unit)
    one = evaluate(GOOGLENET_P4, policy, rate).response_percentile_ms(95)
    other = evaluate(scaled, scaled_policy, rate / unit).response_percentile_ms(95)
    assert other == pytest.approx(one * unit, rel=1e-6)


def test_a_table_that_is_no_control_limit_only_in_long_queues():
    # It starts batches of 4 at queue lengths 9 to 11.
    short = (*range(9), 4, 4, 4, 8)
    rate = 0.9 * 8e3 / GOOGLENET_P4.latency_ms[7]
    one, other = (
        evaluate(GOOGLENET_P4, policy, rate).response_percentile_ms(99)
        for policy in (BatchingPolicy.from_control_limit(1, 8), BatchingPolicy(short))
    )
    assert other > 1.05 * one


@pytest.mark.parametrize("size", [2, 256])
@pytest.mark.parametrize("traffic_intensity", [0.05, 0.99])
def test_the_results_are_sound_from_light_to_heavy_loads(size, traffic_intensity):
    profile = Profile("a", "line", 2.0 + 0.1 * np.arange(1, size + 1), np.full(size, 5.0))
    rate = traffic_intensity * 1e3 * size / profile.latency_ms[-1]
    policy = BatchingPolicy.from_control_limit(1, size)
    evaluation = evaluate(profile, policy, rate)
    assert counted(evaluation) == pytest.approx(evaluation.mean_batch_size, rel=3e-5)
    percentiles = [evaluation.response_percentile_ms(p) for p in (50, 99.9)]
    assert profile.latency_ms[0] <= percentiles[0] < percentiles[1] < 2000


@pytest.mark.parametrize(
    ("size", "rate", "percentile", "message"),
    [
        *((32, rate, 50, "arrival_rate_per_s") for rate in (0.0, -1.0, math.nan, math.inf)),
        *((32, 300.0, percentile, "between 0 and 100") for percentile in (0, 100, -3, math.nan)),
        (64, 300.0, 50, "profile ends at 32"),
    ],
)
def test_values_out_of_range_are_refused(size, rate, percentile, message):
    with pytest.raises(InvalidInputError, match=message):
        evaluate(
            GOOGLENET_P4, BatchingPolicy.from_control_limit(1, size), rate
        ).response_percentile_ms(percentile)


@pytest.mark.parametrize("policy", [BatchingPolicy.from_control_limit(8, 8), LEAVING_SOME])
def test_a_policy_that_cannot_keep_up_is_infeasible(policy):
    capacity = 8e3 / GOOGLENET_P4.latency_ms[7]
    with pytest.raises(InfeasibleError, match="at most 2290"):
        evaluate(GOOGLENET_P4, policy, capacity)
    assert evaluate(GOOGLENET_P4, policy, 0.98 * capacity).mean_response_ms > 0


LEAP = Profile("leap", "d", np.array([1.0] * 4 + [6.0] * 4), np.full(8, 10.0))


@pytest.mark.parametrize("rate", [1300.0, 1500.0, 2000.0])
def test_an_optimum_that_repeats_the_smaller_batch_has_the_averages_of_its_solver(rate):
    # Above 1333/s the larger batch alone could not keep up.
    solution = solve(LEAP, rate, Weights(1, 10))
    assert solution.policy.actions[-1] < solution.policy.max_batch_size
    found = evaluate(LEAP, solution.policy, rate)
    assert found.mean_response_ms == pytest.approx(solution.mean_response_ms, rel=0.005)
    assert found.mean_power_w == pytest.approx(solution.mean_power_w, rel=0.005)


def test_the_capacity_is_that_of_the_batch_that_long_queues_repeat():
    policy = BatchingPolicy((*range(9), 1))
    with pytest.raises(InfeasibleError, match=r"serves at most 736\.8"):
        evaluate(GOOGLENET_P4, policy, 1500.0)
    assert evaluate(GOOGLENET_P4, policy, 730.0).mean_response_ms > 0


def test_one_part_in_a_million_below_the_capacity():
    # In heavy traffic the waiting time of M/D/1 is nearly exponential, with the mean of
    # Pollaczek and Khinchine.
    load = 0.999999
    evaluation = evaluate(one_by_one(2.0), BatchingPolicy.from_control_limit(1, 1), 500 * load)
    mean_wait_ms = 2.0 * load / (2 * (1 - load))
    assert evaluation.mean_response_ms == pytest.approx(2.0 + mean_wait_ms, rel=1e-6)
    for percentile in (50, 99, 99.9):
        expected = -mean_wait_ms * math.log(1 - percentile / 100)
        assert evaluation.response_percentile_ms(percentile) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("below", [1e-10, 1e-12, 1e-13, 1e-15])
def test_a_load_so_close_to_1_that_rounding_decides_is_refused(below):
    """Regression: p99 was wrong from 1 - 1e-12 on, and the mean was 1 ms from 1 - 1e-13 on."""
    policy = BatchingPolicy.from_control_limit(1, 1)
    with pytest.raises(InfeasibleError, match="serves at most 500/s; nothing is computed above"):
        evaluate(one_by_one(2.0), policy, 500 * (1 - below))


def test_a_batch_of_512_under_weights_is_evaluated():
    """Regression: a table of more than 395 queue lengths was refused."""
    b = np.arange(1, 513)
    profile = Profile("a", "line", 1.052 + 0.3051 * b, 19.6 + 19.9 * b)
    rate = 0.6 * profile.capacity_per_s
    solution = solve(profile, rate, Weights(1, 1))
    assert len(solution.policy.actions) > 395
    found = evaluate(profile, solution.policy, rate)
    assert found.mean_response_ms == pytest.approx(solution.mean_response_ms, rel=0.01)
    assert found.response_percentile_ms(99) > found.response_percentile_ms(50)


def test_the_cdf_has_the_shape_of_its_times():
    evaluation = evaluate(GOOGLENET_P4, BatchingPolicy.from_control_limit(1, 32), 300.0)
    assert evaluation.cdf(3.0).shape == ()
    assert evaluation.cdf([[1.0, 2.0], [3.0, 4.0]]).shape == (2, 2)
