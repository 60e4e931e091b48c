import math

import numpy as np
import pytest
from hypothesis import example, given
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


def one_by_one(batch_time_ms):
    return Profile("one", "by one", np.array([batch_time_ms]), np.array([30.0]))


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


@given(
    size=st.integers(1, 12),
    per_request_ms=st.floats(0.01, 3.0),
    fixed_ms=st.floats(0.1, 5.0),
    load=st.floats(0.05, 0.95),
    max_wait_ms=st.none() | st.floats(0.0, 40.0),
    limit=st.floats(0, 1),
    percentile=st.floats(1, 99.9),
)
@example(2, 0.1, 2.0, 0.99, None, 0.0, 99.9)
@example(256, 0.1, 2.0, 0.05, None, 0.0, 50.0)
@example(256, 0.1, 2.0, 0.99, None, 0.0, 50.0)
def test_every_request_is_counted_once_and_a_percentile_is_the_least_time_of_that_share(
    size, per_request_ms, fixed_ms, load, max_wait_ms, limit, percentile
):
    profile = Profile("a", "line", fixed_ms + per_request_ms * np.arange(1, size + 1))
    rate = load * 1e3 * size / profile.latency_ms[-1]
    limit = 1 + int(limit * (size - 1))
    evaluation = evaluate(
        profile, BatchingPolicy.from_control_limit(limit, size, max_wait_ms), rate
    )
    # The distribution and the embedded chain count requests in different ways.
    assert isinstance(evaluation.response_times, ControlLimitResponse)
    assert evaluation.response_times.count == pytest.approx(evaluation.mean_batch_size, rel=3e-5)
    cdf = evaluation.cdf(np.linspace(0, 5 * profile.latency_ms[-1] + 100, 200))
    assert np.all(np.diff(cdf) >= -1e-7)
    assert cdf[0] == 0
    assert evaluation.service_level(profile.latency_ms[0] * 0.999) == 0
    assert evaluation.batch_size_probabilities.sum() == pytest.approx(1)
    reached_ms = evaluation.response_percentile_ms(percentile)
    assert evaluation.service_level(reached_ms) >= percentile / 100
    assert evaluation.service_level(reached_ms * (1 - 1e-6)) < percentile / 100


@pytest.mark.parametrize(
    ("size", "rate", "percentile", "message"),
    [
        *((32, rate, 50, "arrival_rate_per_s") for rate in (0.0, math.nan, math.inf)),
        *((32, 300.0, percentile, "between 0 and 100") for percentile in (0, 100, math.nan)),
        (64, 300.0, 50, "profile ends at 32"),
    ],
)
def test_values_out_of_range_are_refused(size, rate, percentile, message):
    with pytest.raises(InvalidInputError, match=message):
        evaluate(
            GOOGLENET_P4, BatchingPolicy.from_control_limit(1, size), rate
        ).response_percentile_ms(percentile)


@pytest.mark.parametrize(
    ("policy", "capacity_per_s"),
    [
        (BatchingPolicy.from_control_limit(8, 8), 2290.43),
        (BatchingPolicy(tuple(n if n < 4 else 4 if n < 8 else 8 for n in range(9))), 2290.43),
        (BatchingPolicy((*range(9), 1)), 736.8),
    ],
)
def test_the_capacity_is_that_of_the_batch_that_long_queues_repeat(policy, capacity_per_s):
    with pytest.raises(InfeasibleError, match=rf"serves at most {capacity_per_s:g}"):
        evaluate(GOOGLENET_P4, policy, 1.001 * capacity_per_s)
    assert evaluate(GOOGLENET_P4, policy, 0.98 * capacity_per_s).mean_response_ms > 0


LEAP = Profile("leap", "d", np.array([1.0] * 4 + [6.0] * 4), np.full(8, 10.0))


@pytest.mark.parametrize("rate", [1300.0, 1500.0, 2000.0])
def test_an_optimum_that_repeats_the_smaller_batch_has_the_averages_of_its_solver(rate):
    # Above 1333/s the larger batch alone could not keep up.
    solution = solve(LEAP, rate, Weights(1, 10))
    assert solution.policy.actions[-1] < solution.policy.max_batch_size
    found = evaluate(LEAP, solution.policy, rate)
    assert found.mean_response_ms == pytest.approx(solution.mean_response_ms, rel=0.005)
    assert found.mean_power_w == pytest.approx(solution.mean_power_w, rel=0.005)


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


@pytest.mark.parametrize("below", [1e-10, 1e-15])
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
