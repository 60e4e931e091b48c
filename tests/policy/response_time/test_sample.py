"""Policies on a sample: against simulations, closed forms and the exact evaluator."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats

from policy.batching_policy import BatchingPolicy
from policy.latency_quantiles import LatencyQuantiles
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.response_time.sample import Sample
from tests.support.profiles import GOOGLENET_P4

PERCENTILES = (50, 90, 95, 99, 99.9)
MEASURED = np.array([1.0, 10.0, 50.0, 90.0, 99.0])


def gamma_times(profile, variation):
    """Return a profile whose batch times are gamma distributed, by five quantiles."""
    ratios = stats.gamma(variation**-2, scale=variation**2).ppf(MEASURED / 100)
    table = np.repeat(ratios[:, None], profile.max_batch_size, axis=1)
    return replace(profile, latency_quantiles=LatencyQuantiles(MEASURED, table))


def one_by_one(distribution, percentiles):
    """Return a profile without batching, of mean 2 ms."""
    ratios = distribution.ppf(percentiles / 100)[:, None]
    return Profile(
        "one", "by one", np.array([2.0]), latency_quantiles=LatencyQuantiles(percentiles, ratios)
    )


def assert_sampled(evaluation, expected_ms, errors_percent=(0, 0, 0, 0, 0)):
    """Check percentiles by their standard errors."""
    for percentile, expected, error in zip(PERCENTILES, expected_ms, errors_percent, strict=True):
        error_ms = np.hypot(
            evaluation.percentile_standard_error_ms(percentile), 0.01 * error * expected
        )
        found_ms = evaluation.response_percentile_ms(percentile)
        assert found_ms == pytest.approx(expected, rel=0.003, abs=4 * error_ms), percentile


# Simulated with 64 million requests, 192 million at loads of 0.8 and 0.9 without a waiting room:
# percentiles in ms, and their standard errors in percent.
# fmt: off
SIMULATED = [
    # control limit, max wait, waiting room, load, variation, percentiles, standard errors
    (1, None, None, 0.1, 0.3,
        (1.5443, 2.6739, 3.0675, 3.8395, 4.8088), (0.01, 0.01, 0.01, 0.03, 0.04)),
    (1, None, None, 0.9, 0.3,
        (10.3062, 23.3824, 28.2592, 39.0728, 54.8502), (0.09, 0.14, 0.17, 0.3, 0.84)),
    (8, 8.0, None, 0.1, 0.1,
        (8.0269, 10.3321, 10.6206, 11.129, 11.6268), (0.0, 0.0, 0.0, 0.0, 0.01)),
    (8, 8.0, None, 0.9, 0.2,
        (9.7581, 18.5993, 21.8749, 28.4517, 37.1887), (0.06, 0.09, 0.1, 0.16, 0.4)),
    (16, None, None, 0.5, 0.2,
        (10.7431, 16.2119, 17.7217, 20.596, 23.9395), (0.01, 0.02, 0.02, 0.02, 0.03)),
    (8, 8.0, 50, 1.3, 0.3,
        (22.1836, 31.3263, 34.0318, 39.2248, 45.3047), (0.04, 0.03, 0.04, 0.05, 0.08)),
    (1, None, 40, 1.1, 0.3,
        (16.3435, 25.2655, 28.0083, 33.4197, 39.7882), (0.07, 0.04, 0.04, 0.05, 0.06)),
]
# fmt: on


@pytest.mark.parametrize(
    ("limit", "wait_ms", "room", "load", "variation", "simulated_ms", "errors_percent"), SIMULATED
)
def test_percentiles_are_those_of_a_simulation(
    limit, wait_ms, room, load, variation, simulated_ms, errors_percent
):
    evaluation = evaluate(
        gamma_times(GOOGLENET_P4, variation),
        BatchingPolicy.from_control_limit(limit, 32, wait_ms),
        1e3 * load * 32 / GOOGLENET_P4.latency_ms[31],
        max_queue_rows=room,
    )
    assert_sampled(evaluation, simulated_ms, errors_percent)
    computed_ms = [evaluation.response_percentile_ms(p) for p in PERCENTILES]
    assert_allclose(computed_ms[:3], simulated_ms[:3], rtol=0.02)


@pytest.mark.parametrize(
    ("size", "limit", "wait_ms", "room", "load"),
    [
        (32, 8, 8.0, None, 0.9),
        (32, 2, 9.3, 29, 1.5),
        (32, 1, 9.0, 3, 0.5),
    ],
)
def test_times_that_hardly_vary_are_constant_times(size, limit, wait_ms, room, load):
    policy = BatchingPolicy.from_control_limit(limit, size, wait_ms)
    rate = 1e3 * load * size / GOOGLENET_P4.latency_ms[size - 1]
    narrow = LatencyQuantiles.from_dict({"1": 0.9999, "99": 1.0001}, 32)
    constant = evaluate(GOOGLENET_P4, policy, rate, max_queue_rows=room)
    varying = evaluate(
        replace(GOOGLENET_P4, latency_quantiles=narrow), policy, rate, max_queue_rows=room
    )
    assert constant.is_exact
    assert not varying.is_exact
    assert varying.mean_response_ms == pytest.approx(constant.mean_response_ms, rel=0.01)
    assert varying.mean_power_w == pytest.approx(constant.mean_power_w, rel=0.005)
    assert varying.full_probability == pytest.approx(constant.full_probability, rel=0.05, abs=1e-4)
    assert_allclose(varying.batch_size_probabilities, constant.batch_size_probabilities, atol=0.01)
    assert_sampled(varying, [constant.response_percentile_ms(p) for p in PERCENTILES])


@settings(derandomize=True, max_examples=15, deadline=None)
@given(
    limit=st.integers(1, 8),
    wait_ms=st.none() | st.floats(0.5, 20),
    load=st.floats(0.05, 0.97),
    room=st.none() | st.integers(8, 40),
)
def test_the_sample_of_a_control_limit_has_its_exact_distribution(limit, wait_ms, load, room):
    policy = BatchingPolicy.from_control_limit(limit, 8, wait_ms)
    rate_per_ms = load * 8 / GOOGLENET_P4.latency_ms[7]
    exact = evaluate(GOOGLENET_P4, policy, 1e3 * rate_per_ms, max_queue_rows=room)
    sample = Sample(GOOGLENET_P4, policy, rate_per_ms, room)
    assert sample.mean_ms == pytest.approx(exact.mean_response_ms, rel=0.02)
    assert sample.served_per_start == pytest.approx(exact.mean_batch_size, rel=0.01)
    for level in (0.5, 0.9, 0.99):
        time_ms = sample.quantile(level)
        near_ms = 4 * sample.standard_error_ms(level) + 0.002 * time_ms
        assert exact.service_level(time_ms + near_ms) >= level - 1e-6
        assert exact.service_level(time_ms - near_ms) <= level + 1e-6


@pytest.mark.parametrize(("load", "variation"), [(0.1, 0.6), (0.5, 0.1), (0.9, 0.6), (0.995, 0.3)])
def test_without_batching_the_mean_is_that_of_pollaczek_and_khinchine(load, variation):
    profile = one_by_one(stats.gamma(variation**-2, scale=variation**2), MEASURED)
    (ratios,), weights = profile.latency_quantiles.points
    mean, square = 2 * float(ratios @ weights), 4 * float(ratios**2 @ weights)
    rate = load / mean
    evaluation = evaluate(profile, BatchingPolicy.from_control_limit(1, 1), 1e3 * rate)
    expected = mean + rate * square / (2 * (1 - load))
    assert evaluation.mean_response_ms == pytest.approx(expected, rel=0.02)
    if load > 0.99:
        # Kingman: in heavy traffic the wait is exponential.
        p99_ms = evaluation.response_percentile_ms(99)
        assert p99_ms == pytest.approx(np.log(100) * (expected - mean), rel=0.02)


def test_without_a_waiting_room_it_is_the_loss_system_of_erlang():
    gamma = stats.gamma(0.3**-2, scale=0.3**2)
    profile = one_by_one(gamma, MEASURED)
    evaluation = evaluate(profile, BatchingPolicy.from_control_limit(1, 1), 400.0, max_queue_rows=0)
    assert evaluation.full_probability == pytest.approx(0.8 / 1.8, rel=5e-3)
    for percentile in PERCENTILES:
        assert evaluation.response_percentile_ms(percentile) == pytest.approx(
            2 * gamma.ppf(percentile / 100), rel=0.01
        )
