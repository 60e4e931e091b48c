import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.forecasting.recurring import RECURRENCES, Recurrence, RecurringPeaks

LAWS = settings(max_examples=25, derandomize=True, deadline=None)
HOUR = 360  # steps of 10 s


def hourly(hours, at=100, steps=30, level=10.0, peak=40.0):
    series = np.full(hours * HOUR, level)
    for hour in range(hours):
        series[hour * HOUR + at : hour * HOUR + at + steps] = peak
    return series


def test_a_jump_is_expected_at_its_time_and_not_afterwards():
    series, ahead = hourly(6), 6
    peaks = RecurringPeaks(series, series, ahead).expected_peaks(Recurrence(3600, 4), 4 * HOUR)[
        :HOUR
    ]
    expected = np.flatnonzero(peaks)
    # From the horizon and the jitter before it until the jitter after it.
    assert expected[0] == 100 - ahead - 2
    assert expected[-1] == 99 + 2
    assert peaks[97] == pytest.approx(1.2 * 40, rel=0.05)


def test_the_expected_peak_grows_with_the_load():
    series = hourly(6)
    series[4 * HOUR :] *= 1.5
    peaks = RecurringPeaks(series, series, 6).expected_peaks(Recurrence(3600, 1), 4 * HOUR)
    assert peaks[97] == pytest.approx(1.5 * 1.2 * 40)


def test_a_single_jump_is_not_expected_again_if_two_are_required():
    series = np.full(26 * HOUR, 10.0)
    series[20 * HOUR + 50 : 20 * HOUR + 80] = 60.0
    recurring = RecurringPeaks(series, series, 6)
    assert recurring.expected_peaks(Recurrence(3600, 24), 21 * HOUR).max() > 60
    assert recurring.expected_peaks(Recurrence(3600, 24, 2), 21 * HOUR).max() == 0


def test_jumps_of_an_idle_service_are_expected_again():
    """A forecast that multiplies the present load would stay at zero."""
    series = hourly(4, level=0.0)
    assert RecurringPeaks(series, series, 6).expected_peaks(Recurrence(3600, 1), 3 * HOUR)[97] > 30


def test_a_period_shorter_than_the_horizon_is_ignored():
    series = hourly(4)
    assert not RecurringPeaks(series, series, 100).expected_peaks(Recurrence(900, 4), 0).any()


@LAWS
@given(
    st.integers(0, 10**6),
    st.sampled_from(RECURRENCES[:-1]),
    st.sampled_from([1, 6, 30]),
    st.integers(0, 6),
)
def test_the_peak_after_the_end_is_that_of_the_longer_history(seed, recurrence, ahead, later):
    rng = np.random.default_rng(seed)
    series = rng.poisson(20, 9000) * np.where(rng.random(9000) < 0.02, 4.0, 1.0)
    known = series[: series.size - later]
    slow = series[-90:].mean()
    expected = RecurringPeaks(series, series, ahead).expected_peaks(recurrence, series.size - 1)[0]
    got = RecurringPeaks(known, known, ahead).expected_peak_after(recurrence, later, slow)
    assert got == pytest.approx(expected)
