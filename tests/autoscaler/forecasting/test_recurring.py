import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.forecasting.load_history import STEP_S, LoadHistory
from autoscaler.forecasting.recurring import (
    JITTER_STEPS,
    PERIODS,
    RECURRENCES,
    JumpCalendar,
    Recurrence,
)

LAWS = settings(max_examples=15, derandomize=True, deadline=None)
HOUR, DAY = 3600, 86_400
EVEN, SOME = Recurrence(0.4), Recurrence(0.1)


def load(seconds, jumps, level=10.0, peak=40.0, length=300):
    """Return a load by steps, with a jump of `length` seconds at each of some times."""
    rates = np.full(seconds // STEP_S, level)
    for begin in jumps:
        rates[begin // STEP_S : (begin + length) // STEP_S] = peak
    return rates


class SteppedHistory(LoadHistory):
    """A history that is given its steps, which are noiseless: months of it in milliseconds."""

    def add(self, rates, known=1.0):
        for series, values in (
            (self.rates, rates),
            (self.required_rates, rates),
            (self.known, np.full(len(rates), known)),
        ):
            series.replace(np.concatenate((series.values, values)))
        self._end = (self._end or 0) + len(rates) * STEP_S


class Learner:
    """A history and its calendar, fed by the day."""

    def __init__(self):
        self.history, self.calendar = SteppedHistory(0.01), JumpCalendar()

    def feed(self, rates, known=1.0):
        for begin in range(0, len(rates), DAY // STEP_S):
            self.history.add(rates[begin : begin + DAY // STEP_S], known)
            self.calendar.advance(self.history)
        return self

    def shares(self, times_s):
        return self.calendar.expected(np.asarray(times_s) // STEP_S)[0]

    def peaks(self, recurrence, steps_ahead=6):
        return self.calendar.expected_peaks(self.history, recurrence, steps_ahead)


def hourly(hours, at=1000):
    return load(hours * HOUR, range(at, hours * HOUR, HOUR))


def noisy(seed, steps):
    """Return a load that jumps at random times."""
    rng = np.random.default_rng(seed)
    factors = np.where(rng.random(steps // 10 + 1) < 0.1, 4.0, 1.0)
    return rng.poisson(100, steps) * np.repeat(factors, 10)[:steps] / 10


def test_a_jump_is_expected_at_its_time_and_not_afterwards():
    ahead = 6
    peaks = Learner().feed(hourly(8)).peaks(SOME, ahead)[7 * HOUR // STEP_S :]
    expected = np.flatnonzero(peaks)
    # From the horizon and the jitter before it, until the jitter after it. A jump takes up to two
    # steps to be seen.
    assert abs(expected[0] - (100 - ahead - JITTER_STEPS)) <= 2
    assert abs(expected[-1] - (99 + JITTER_STEPS)) <= 2
    assert peaks[97] == pytest.approx(40, rel=0.15)


def test_the_expected_peak_grows_with_the_load():
    learner = Learner().feed(np.tile(hourly(24), 5))
    before = learner.calendar.expected_peak(learner.history, SOME, 360)
    learner.feed(1.5 * np.tile(hourly(24), 2))
    after = learner.calendar.expected_peak(learner.history, SOME, 360)
    assert after == pytest.approx(1.5 * before, rel=0.05)


def test_a_single_jump_is_not_expected_by_the_hour():
    rates = load(30 * HOUR, [20 * HOUR + 500])
    learner = Learner().feed(rates)
    assert learner.peaks(EVEN).max() == 0


def test_jumps_of_an_idle_service_are_expected_again():
    """A forecast that multiplies the present load would stay at zero."""
    rates = load(8 * HOUR, range(1000, 8 * HOUR, HOUR), level=0.0)
    assert Learner().feed(rates).peaks(SOME)[7 * 360 + 97] > 30


def test_a_jump_may_come_half_a_minute_early_or_late():
    rng = np.random.default_rng(1)
    jumps = [hour * HOUR + 1000 + 10 * rng.integers(-2, 3) for hour in range(24)]
    share = Learner().feed(load(24 * HOUR, jumps)).shares([24 * HOUR + 1000])
    assert share[0] > 0.7


@pytest.mark.slow
def test_a_second_day_is_better_than_the_first_and_a_second_week_than_the_second_day():
    """Jumps once a day, but never on the last day of a week."""
    at = 13 * HOUR + 1800
    jumps = [day * DAY + at for day in range(21) if day % 7 != 6]
    rates = load(21 * DAY, jumps)
    expected = {}
    learner = Learner()
    for day in range(20):
        learner.feed(rates[day * DAY // STEP_S : (day + 1) * DAY // STEP_S])
        expected[day + 1] = learner.shares([(day + 1) * DAY + at])[0]
    assert expected[1] < expected[2] < expected[4]
    # The first day off surprises; the second is known better, the third better still.
    assert expected[6] > expected[13] > expected[20]


@pytest.mark.slow
def test_a_routine_that_has_ended_is_forgotten():
    at = 7 * HOUR
    learner = Learner().feed(load(7 * DAY, [day * DAY + at for day in range(7)]))
    assert learner.shares([7 * DAY + at])[0] > 0.4
    learner.feed(load(28 * DAY, []))
    assert learner.shares([35 * DAY + at])[0] == 0


def test_nothing_is_learned_from_a_gap():
    learner = Learner().feed(hourly(24))
    before = learner.shares([24 * HOUR + 1000])[0]
    learner.feed(load(48 * HOUR, []), known=0.0)
    assert learner.shares([72 * HOUR + 1000])[0] == before


@LAWS
@given(st.integers(0, 10**6), st.lists(st.integers(1, 300), min_size=1, max_size=12))
def test_it_does_not_matter_in_what_pieces_the_load_comes(seed, pieces):
    rates = noisy(seed, 1200)
    whole, parts = Learner().feed(rates), Learner()
    for part in np.split(rates, np.minimum(np.cumsum(pieces), rates.size)):
        parts.feed(part)
    assert np.array_equal(whole.calendar.shares.values, parts.calendar.shares.values)
    assert np.array_equal(whole.calendar._tables[:2], parts.calendar._tables[:2])


@pytest.mark.slow
@settings(LAWS, max_examples=6)
@given(st.integers(0, 10**6), st.sampled_from(RECURRENCES), st.sampled_from([1, 6, 30]))
def test_the_back_test_sees_what_was_expected_then(seed, recurrence, ahead):
    """No more is known in a back-test than was known at the time."""
    rates, learner, then = noisy(seed, 400), Learner(), []
    for rate in rates:
        learner.feed([rate])
        then.append(learner.calendar.expected_peak(learner.history, recurrence, ahead))
    later = learner.peaks(recurrence, ahead)
    assert np.allclose(later[: -ahead - 1], then[: -ahead - 1])


@LAWS
@given(st.integers(0, 10**6))
def test_shares_are_shares(seed):
    learner = Learner().feed(noisy(seed, 5000))
    shares, heights = learner.calendar.expected(np.arange(0, PERIODS[-1], 7))
    assert ((shares == 0) | (shares >= RECURRENCES[-1].min_share)).all()
    assert shares.max() <= 1
    assert (heights >= 0).all()


def test_a_restored_calendar_expects_alike_and_is_small():
    learner = Learner().feed(np.tile(hourly(24), 3))
    content = json.dumps(learner.calendar.snapshot()())
    assert len(content) < 60_000
    restored = JumpCalendar.from_state(json.loads(content))
    steps = np.arange(3 * DAY // STEP_S, 4 * DAY // STEP_S)
    for expected, got in zip(
        learner.calendar.expected(steps), restored.expected(steps), strict=True
    ):
        assert np.allclose(got, expected, rtol=5e-3, atol=1e-3)
    learner.calendar = restored
    learner.feed(hourly(1))
    assert restored.shares.values[-360:].max() > 0.3


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("tables"),
        lambda state: state["tables"].pop(),
        lambda state: state.update(shares=[1.0, "no base64 \x00"]),
        lambda state: state.update(tables=3 * [state["shares"]]),
    ],
)
def test_an_unusable_state_is_refused(change):
    state = Learner().feed(hourly(1)).calendar.snapshot()()
    change(state)
    with pytest.raises((KeyError, TypeError, ValueError)):
        JumpCalendar.from_state(state)
