import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import stats

from autoscaler.simulator.arrivals import (
    ArrivalTimes,
    WithinSecond,
    poisson_counts,
    scaled_counts,
    smoothed_rate,
    superposed_counts,
)
from policy.errors import InvalidInputError


def seeded(seed=1):
    return np.random.default_rng(seed)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.sampled_from(WithinSecond))
def test_the_arrivals_of_a_second_are_within_it_and_ascend(counts, within_second):
    times = ArrivalTimes(np.array(counts), within_second, seeded())
    for second, count in enumerate(counts):
        drawn = times.of_second(second)
        assert drawn.size == count
        assert np.all(np.floor(drawn) == second)
        assert np.all(np.diff(drawn) > 0)


def test_poisson_counts_with_uniform_times_are_a_poisson_process():
    counts = poisson_counts(200.0, 100, seeded())
    arrivals = ArrivalTimes(counts, WithinSecond.UNIFORM, seeded(2))
    gaps = np.diff(np.concatenate([arrivals.of_second(second) for second in range(100)]))
    assert stats.kstest(gaps, stats.expon(scale=1 / 200).cdf).pvalue > 0.01


def test_the_density_of_linear_times_leads_from_the_second_before_to_the_one_after():
    # Borders at (0 + 20000) / 2 and (20000 + 40000) / 2: density 1 to 3, over its mean of 2.
    arrivals = ArrivalTimes(np.array([0, 20_000, 40_000]), WithinSecond.LINEAR, seeded())
    arrivals.of_second(0)
    times = arrivals.of_second(1) - 1
    assert stats.kstest(times, lambda x: (x + x**2) / 2).pvalue > 0.01


@given(st.lists(st.integers(0, 1000), min_size=1), st.floats(0.01, 20))
def test_scaled_counts_are_rounded_up_or_down(counts, factor):
    scaled = scaled_counts(counts, factor, seeded())
    assert np.all(np.abs(scaled - factor * np.array(counts)) < 1)


def test_scaled_counts_are_right_on_average():
    scaled = scaled_counts(np.full(100_000, 3), 0.1, seeded())
    assert scaled.mean() == pytest.approx(0.3, abs=4 * np.sqrt(0.3 * 0.7 / 100_000))


MOST = "at most 10,000,000 requests per second"


@pytest.mark.parametrize(
    ("draw", "given"),
    [
        (poisson_counts, (1e19, 10)),
        (scaled_counts, ([5, 3], 1e17)),
        (superposed_counts, ([5, 3], 1e30)),
    ],
)
def test_values_out_of_range_are_rejected(draw, given):
    with pytest.raises(InvalidInputError, match=MOST):
        draw(*given, seeded())


def test_a_superposed_trace_has_the_rate_of_the_trace_and_the_noise_of_a_poisson_process():
    counts = seeded().poisson(2.0, 20_000)
    drawn = superposed_counts(counts, 50.0, seeded(2))
    assert drawn.mean() == pytest.approx(50 * counts.mean(), rel=0.01)
    scaled = scaled_counts(counts, 50.0, seeded(2))
    # A scaled trace has the variance 50 * 50 * 2, a superposed one 50 * 2 and what is left of it.
    assert scaled.var() == pytest.approx(5000, rel=0.1)
    assert drawn.var() == pytest.approx(100 + 5000 / 51, rel=0.1)


@given(st.lists(st.integers(0, 90), min_size=1, max_size=60))
def test_a_smoothed_rate_stays_within_the_counts(counts):
    rate = smoothed_rate(counts)
    assert rate.shape == (len(counts),)
    assert np.all((rate >= min(counts) - 1e-9) & (rate <= max(counts) + 1e-9))


def test_a_busy_trace_is_left_as_it_is():
    counts = np.array([500.0, 900.0, 700.0])
    assert_array_equal(smoothed_rate(counts), counts)
