import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.forecasting.load_history import STEP_S, LoadHistory
from autoscaler.forecasting.recurring import (
    JITTER_STEPS,
    RECURRENCES,
    Recurrence,
    expected_peaks,
    jump_heights,
)

LAWS = settings(max_examples=15)
HOUR = 3600
HOURLY = Recurrence(HOUR, 0.4)


def load(seconds, jumps, level=10.0, peak=40.0, length=300):
    """Return a load by steps, with a jump of `length` seconds at each of some times."""
    rates = np.full(seconds // STEP_S, level)
    for begin in jumps:
        rates[begin // STEP_S : (begin + length) // STEP_S] = peak
    return rates


def history_of(rates):
    """Return a history with given steps, which are noiseless."""
    history = LoadHistory(0.01)
    for series in (history.rates, history.required_rates):
        series.replace(rates)
    history.known.replace(np.ones(rates.size))
    return history


def hourly(hours, at=1000, **given):
    return load(hours * HOUR, range(at, hours * HOUR, HOUR), **given)


def noisy(seed, steps):
    """Return a load that jumps at random times."""
    rng = np.random.default_rng(seed)
    factors = np.where(rng.random(steps // 10 + 1) < 0.1, 4.0, 1.0)
    return rng.poisson(100, steps) * np.repeat(factors, 10)[:steps] / 10


def peaks_of(rates, recurrence=HOURLY, ahead=6):
    return expected_peaks(jump_heights(history_of(rates)), recurrence, ahead)


def test_a_jump_is_expected_at_its_time_and_not_afterwards():
    ahead = 6
    peaks = peaks_of(hourly(8), ahead=ahead)[7 * HOUR // STEP_S :]
    expected = np.flatnonzero(peaks)
    # From the horizon and the jitter before it, until the jitter after it. A jump takes up to two
    # steps to be seen.
    assert abs(expected[0] - (100 - ahead - JITTER_STEPS)) <= 2
    assert abs(expected[-1] - (99 + JITTER_STEPS)) <= 2
    assert peaks[97] == pytest.approx(40)


def test_a_single_jump_is_not_expected_by_the_hour():
    peaks = peaks_of(load(30 * HOUR, [20 * HOUR + 500]))
    assert peaks[22 * HOUR // STEP_S :].max() == 0


def test_jumps_of_an_idle_service_are_expected_again():
    """A forecast that multiplies the present load would stay at zero."""
    assert peaks_of(hourly(8, level=0.0))[7 * 360 + 97] > 30


@LAWS
@given(st.integers(0, 10**6), st.sampled_from(RECURRENCES), st.sampled_from([1, 6, 30]))
def test_the_back_test_sees_what_was_expected_then(seed, recurrence, ahead):
    """No more is known in a back-test than was known at the time."""
    rates = noisy(seed, 2000)
    later = peaks_of(rates, recurrence, ahead)
    for end in range(200, 2000, 300):
        then = peaks_of(rates[:end], recurrence, ahead)
        assert then[-1] == later[end - 1]
