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
from tests.support.profiles import GOOGLENET_P4, gamma_times

PERCENTILES = (50, 90, 95, 99, 99.9)
MEASURED = np.array([1.0, 10.0, 50.0, 90.0, 99.0])


def one_by_one(distribution, percentiles):
    """Return a profile without batching, of mean 2 ms."""
    ratios = distribution.ppf(percentiles / 100)[:, None]
    return Profile(
        "one", "by one", np.array([2.0]), latency_quantiles=LatencyQuantiles(percentiles, ratios)
    )


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
    for percentile, simulated, percent in zip(
        PERCENTILES, simulated_ms, errors_percent, strict=True
    ):
        found_ms = evaluation.response_percentile_ms(percentile)
        error_ms = np.hypot(
            evaluation.percentile_standard_error_ms(percentile), 0.01 * percent * simulated
        )
        assert found_ms == pytest.approx(simulated, rel=0.003, abs=4 * error_ms), percentile
        assert percentile > 95 or found_ms == pytest.approx(simulated, rel=0.02)


@settings(max_examples=10)
@given(
    limit=st.integers(1, 8),
    wait_ms=st.none() | st.floats(0.5, 20),
    load=st.floats(0.05, 0.97),
    room=st.none() | st.integers(8, 40),
)
def test_times_that_hardly_vary_have_the_exact_distribution_of_constant_times(
    limit, wait_ms, load, room
):
    policy = BatchingPolicy.from_control_limit(limit, 8, wait_ms)
    rate = 1e3 * load * 8 / GOOGLENET_P4.latency_ms[7]
    narrow = LatencyQuantiles.from_dict({"1": 0.9999, "99": 1.0001}, 32)
    exact, sampled = (
        evaluate(
            replace(GOOGLENET_P4, latency_quantiles=quantiles), policy, rate, max_queue_rows=room
        )
        for quantiles in (None, narrow)
    )
    assert not sampled.is_exact
    assert sampled.mean_response_ms == pytest.approx(exact.mean_response_ms, rel=0.02)
    assert sampled.mean_power_w == pytest.approx(exact.mean_power_w, rel=0.005)
    assert sampled.full_probability == pytest.approx(exact.full_probability, abs=0.003)
    assert_allclose(sampled.batch_size_probabilities, exact.batch_size_probabilities, atol=0.01)
    for percentile in (50, 90, 99):
        time_ms = sampled.response_percentile_ms(percentile)
        near_ms = 4 * sampled.percentile_standard_error_ms(percentile) + 0.003 * time_ms
        assert exact.service_level(time_ms + near_ms) >= percentile / 100 - 1e-6
        assert exact.service_level(time_ms - near_ms) <= percentile / 100 + 1e-6


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
