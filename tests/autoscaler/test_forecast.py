import numpy as np
import pytest

from autoscaler.forecast import FORECASTERS, LastValue, LinearTrend, RateHistory


def history(rates, window=10):
    rates = np.asarray(rates, dtype=float)
    return RateHistory(current_per_s=float(rates[-window:].mean()), step_s=1.0, rates_per_s=rates)


def test_last_value_is_the_mean_of_the_window():
    rates = [100.0] * 50 + [10.0, 30.0] * 5
    assert LastValue().peak_per_s(history(rates), 60.0) == 20.0


def test_a_line_is_drawn_on_to_the_horizon():
    rates = 100 + 2.0 * np.arange(120)
    # The last step's middle is half a second before now.
    assert LinearTrend().peak_per_s(history(rates), 30.0) == pytest.approx(338 + 2 * 30)


def test_a_fall_is_not_anticipated():
    rates = 400 - 2.0 * np.arange(120)
    falling = history(rates)
    assert LinearTrend().peak_per_s(falling, 30.0) == falling.current_per_s


def test_too_short_a_history_has_no_trend():
    short = history(10.0 * np.arange(9))
    assert LinearTrend().peak_per_s(short, 30.0) == short.current_per_s


@pytest.mark.parametrize("horizon_s", [10.0, 60.0, 300.0])
def test_noise_is_no_trend(horizon_s):
    """At a constant rate the forecast must not run away with the horizon."""
    rng = np.random.default_rng(5)
    rates = rng.poisson(200.0, size=4000)
    peaks = [
        LinearTrend().peak_per_s(history(rates[end - 600 : end]), horizon_s)
        for end in range(600, 4000, 50)
    ]
    assert np.mean(peaks) < 1.03 * 200
    assert np.max(peaks) < 1.25 * 200


def test_a_noisy_rise_is_seen_in_time():
    rng = np.random.default_rng(6)
    rates = rng.poisson(200 + 2.0 * np.arange(120))
    peak = LinearTrend().peak_per_s(history(rates), 60.0)
    assert 480 < peak < 600  # it will be 560


def test_order_of_the_names_is_what_travels():
    assert list(FORECASTERS)[:2] == ["last", "linear"]
