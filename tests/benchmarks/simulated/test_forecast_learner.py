import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulated.forecast_learner import QUANTILES, highest_ahead, learned_ratios, tables


def load(seed, seconds=7200):
    return np.random.default_rng(seed).poisson(200.0, seconds).astype(float)


@settings(max_examples=8, derandomize=True, deadline=None)
@given(st.integers(0, 10**6), st.integers(60, 700))
def test_features_know_nothing_of_the_future(seed, step):
    counts = load(seed)
    changed = counts.copy()
    # Later loads may not be higher on average: the divisor's lower bound is of the whole load.
    changed[10 * step :] = np.random.default_rng(seed).permutation(changed[10 * step :])
    (before,), (after,) = tables([counts], 60, 0.01), tables([changed], 60, 0.01)
    np.testing.assert_array_equal(before.features[:step], after.features[:step])
    np.testing.assert_array_equal(before.required[:step], after.required[:step])


def test_a_day_knows_the_days_before_it():
    first, second = load(1), load(2)
    alone = tables([second], 60, 0.01)[0]
    after = tables([first, second], 60, 0.01)[1]
    assert after.features.shape == alone.features.shape
    assert (after.features != alone.features).any()
    np.testing.assert_array_equal(after.peak, alone.peak)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.integers(0, 10))
def test_the_highest_ahead_is_that_of_the_values_from_here(values, count):
    expected = [max(values[i : i + count + 1]) for i in range(len(values))]
    assert highest_ahead(np.array(values), count).tolist() == expected


@pytest.mark.slow
def test_learned_quantiles_cover_what_they_were_learned_on():
    (table,) = tables([load(1, 21_600)], 60, 0.01)
    ratios = learned_ratios([table], table)
    assert (np.diff(ratios, axis=1) >= 0).all()
    actual = table.peak / table.scale
    for index, quantile in enumerate(QUANTILES):
        assert np.mean(actual <= ratios[:, index]) == pytest.approx(quantile, abs=0.04)
