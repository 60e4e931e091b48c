import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.forecasting.point_forecasts import (
    LAST,
    LINEAR,
    PEAKS,
    trailing_max,
    trailing_mean,
)

series = st.lists(st.floats(0, 1e4), min_size=1, max_size=60).map(np.array)


@given(series, st.integers(1, 70))
def test_trailing_statistics_cover_the_last_steps(values, steps):
    windows = [values[max(0, end - steps) : end] for end in range(1, values.size + 1)]
    np.testing.assert_array_equal(trailing_max(values, steps), [w.max() for w in windows])
    np.testing.assert_allclose(
        trailing_mean(values, steps), [w.mean() for w in windows], atol=1e-8 * values.max()
    )


@pytest.mark.parametrize("point", [LAST, LINEAR, *PEAKS], ids=lambda point: point.name)
@given(values=series, ahead=st.integers(1, 30), data=st.data())
def test_no_forecast_looks_into_the_future(point, values, ahead, data):
    end = data.draw(st.integers(1, values.size))
    whole = point.values(values, values, ahead)
    known = point.values(values[:end], values[:end], ahead)
    np.testing.assert_allclose(whole[:end], known, rtol=1e-6, atol=1e-3)
    assert whole.shape == values.shape
    assert (whole >= -1e-6).all()


def test_a_line_is_extrapolated_to_the_horizon():
    rates = 100 + 2.0 * np.arange(120)
    # The mean of the last step belongs to its middle; the line continues from there.
    assert LINEAR.values(rates, rates, 6)[-1] == pytest.approx(rates[-1] + 2 * 6)


def test_a_fall_is_not_extrapolated():
    rates = 400 - 2.0 * np.arange(120)
    for ahead in (1, 6, 30):
        np.testing.assert_array_equal(
            LINEAR.values(rates, rates, ahead), LAST.values(rates, rates, ahead)
        )


@pytest.mark.parametrize("ahead", [6, 30])
def test_noise_is_not_a_trend(ahead):
    """At a constant rate, a longer horizon must not raise the forecast."""
    rates = np.random.default_rng(5).poisson(2000.0, size=4000) / 10
    line = LINEAR.values(rates, rates, ahead)[100:]
    assert line.mean() < 1.01 * 200
    assert line.max() < 1.25 * 200
