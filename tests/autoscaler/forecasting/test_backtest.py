import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.forecasting.backtest import Backtest, Candidate, Score, choose_cheapest
from autoscaler.forecasting.load_history import STEP_S, LoadHistory
from autoscaler.forecasting.point_forecasts import LAST, LINEAR, PEAKS, trailing_max
from autoscaler.forecasting.recurring import Recurrence, expected_peaks, jump_heights

LAWS = settings(max_examples=20, derandomize=True, deadline=None)
JUMPS = Recurrence(3600, 0.1)


def history_of(rates):
    history = LoadHistory(0.01)
    history.observe(float(len(rates)), rates)
    return history


def backtest_of(history, ahead=6):
    return Backtest(history, ahead)


def bursty(seed, seconds=20_000):
    rng = np.random.default_rng(seed)
    level = np.repeat(np.exp(rng.normal(0, 0.4, seconds // 100)), 100)
    return rng.poisson(50 * level).astype(float)


@pytest.mark.slow
@LAWS
@given(
    st.integers(0, 10**6),
    st.sampled_from([LAST, LINEAR, *PEAKS]),
    st.sampled_from([None, JUMPS]),
    st.sampled_from([0.003, 0.01, 0.05, 0.3]),
    st.sampled_from([1, 6]),
)
def test_the_margin_is_the_least_that_misses_at_most_the_risk(seed, point, back, risk, ahead):
    history = history_of(bursty(seed))
    score = Backtest(history, ahead).score(Candidate(point, back), risk)
    rates, required = history.rates.values, history.required_rates.values
    size = rates.size - ahead
    forecasts = np.maximum(point.values(rates, required, ahead), 0.05 * rates.mean())[:size]
    floor = required[:size].copy()
    if back is not None:
        np.maximum(floor, expected_peaks(jump_heights(history), back, ahead)[:size], out=floor)
    peaks = trailing_max(required, ahead)[ahead:]

    def missed(margin):
        return np.mean(peaks > np.maximum(margin * forecasts, floor) + 1e-9)

    assert missed(score.margin) <= risk
    if score.margin > 0:
        assert missed(score.margin * (1 - 1e-6)) > risk


def test_nothing_is_learned_from_gaps():
    rates = bursty(1, 9000)
    whole, gappy = history_of(rates), history_of(rates)
    whole_steps = backtest_of(whole).steps
    gappy.observe(9000.0 + 2000.0, [900.0] * 10)
    backtest = backtest_of(gappy)
    assert backtest.steps <= whole_steps + 1
    assert backtest.score(Candidate(LAST), 0.01).margin == pytest.approx(
        backtest_of(whole).score(Candidate(LAST), 0.01).margin, rel=0.05
    )


def test_ratios_to_almost_nothing_do_not_inflate_the_demand():
    """An idle minute before a burst once asked for a hundred times the highest load ever seen."""
    rates = np.zeros(20_000)
    for begin in range(600, 20_000, 700):
        rates[begin : begin + 30] = 100.0
    history = history_of(rates)
    score = backtest_of(history).score(Candidate(LAST), 0.001)
    assert score.cost_per_s <= 1.1 * history.required_rates.values.max()


def scores(*costs):
    candidates = [Candidate(point) for point in (LAST, *PEAKS)]
    return [Score(one, 1.0, cost) for one, cost in zip(candidates, costs, strict=False)], candidates


def test_the_first_wins_unless_another_saves_enough():
    tied, candidates = scores(100.0, 98.5, 99.0)
    assert choose_cheapest(tied, None, 0.02).candidate == candidates[0]
    clear, candidates = scores(100.0, 97.0, 99.0)
    assert choose_cheapest(clear, None, 0.02).candidate == candidates[1]


def test_the_incumbent_stays_unless_another_saves_enough():
    close, candidates = scores(100.0, 91.0, 90.0)
    assert choose_cheapest(close, candidates[1], 0.02).candidate == candidates[1]
    assert choose_cheapest(close, None, 0.02).candidate == candidates[2]
    assert choose_cheapest(close, candidates[0], 0.02).candidate == candidates[2]


def test_a_past_shorter_than_the_horizon_has_no_score():
    assert backtest_of(history_of([5.0] * STEP_S * 3)).steps == 0
    assert backtest_of(LoadHistory(0.01)).score(Candidate(LAST), 0.01).margin == 1.0


@LAWS
@given(st.integers(0, 10**6), st.sampled_from([1, 6]), st.sampled_from([1, 12]))
def test_the_largest_rise_is_that_of_a_horizon_over_the_time_before_it(seed, ahead, look_back):
    history = history_of(bursty(seed, seconds=2000))
    required = history.required_rates.values
    rises = [
        required[now + 1 : now + 1 + ahead].max() / required[now - look_back + 1 : now + 1].max()
        for now in range(look_back, required.size - ahead)
    ]
    assert backtest_of(history, ahead).largest_rise(look_back) == pytest.approx(max(rises))
