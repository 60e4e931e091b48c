import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.forecasting.backtest import (
    MISS_COST,
    Backtest,
    Candidate,
    Score,
    choose_cheapest,
)
from autoscaler.forecasting.load_history import LoadHistory
from autoscaler.forecasting.point_forecasts import LAST, LINEAR, PEAKS, trailing_max
from autoscaler.forecasting.recurring import Recurrence, expected_peaks, jump_heights

LAWS = settings(max_examples=20)
JUMPS = Recurrence(3600, 0.1)


def history_of(rates):
    history = LoadHistory(0.01)
    history.observe(float(len(rates)), rates)
    return history


def bursty(seed, seconds=20_000):
    rng = np.random.default_rng(seed)
    level = np.repeat(np.exp(rng.normal(0, 0.4, seconds // 100)), 100)
    return rng.poisson(50 * level).astype(float)


def missed_share(history, ordered, exact_ahead):
    """Return the share of the minutes, from the newest back, that lack capacity."""
    rates, required = history.rates.values, history.required_rates.values
    ahead, missed = max(1, round(exact_ahead)), []
    for end in range(rates.size, ahead + 5, -6):
        served = np.array([ordered[max(0, at - ahead) : at].min() for at in range(end - 6, end)])
        window = rates[end - 6 : end]
        unserved = min(1.0, exact_ahead) * np.maximum(0, window - served).sum()
        too_little = unserved > history.unserved_share * window.sum()
        best = served if exact_ahead >= 1 else ordered[end - 6 : end]
        missed.append(too_little or best.max() < required[end - 1])
    return np.mean(missed)


@pytest.mark.slow
@LAWS
@given(
    st.integers(0, 10**6),
    st.sampled_from([LAST, LINEAR, *PEAKS]),
    st.sampled_from([None, JUMPS]),
    st.sampled_from([0.003, 0.01, 0.05, 0.3]),
    st.sampled_from([0.2, 1, 6]),
    st.sampled_from([(0.0, 0), (7.0, 2), (40.0, 12)]),
)
def test_the_margin_is_the_cheapest_for_the_minutes_that_its_orders_hold(
    seed, point, back, risk, exact_ahead, orders
):
    history, ahead = history_of(bursty(seed)), max(1, round(exact_ahead))
    score = Backtest(history, exact_ahead, *orders).score(Candidate(point, back), risk)
    replica_per_s, hold = orders
    rates, required = history.rates.values, history.required_rates.values
    forecasts = np.maximum(point.values(rates, required, ahead), 0.05 * rates.mean())
    floor = required.copy()
    if back is not None:
        np.maximum(floor, expected_peaks(jump_heights(history), back, ahead), out=floor)

    def cost(margin):
        demand = np.minimum(forecasts + margin * np.sqrt(forecasts), 1.1 * required.max())
        held = trailing_max(np.maximum(demand, floor), hold + 1)
        if replica_per_s:
            held = replica_per_s * np.ceil(held / replica_per_s)
        excess = max(0.0, missed_share(history, held, exact_ahead) / risk - 1)
        return held.mean() + MISS_COST * excess * required.mean()

    # The margin for which the demand misses the share `risk` of the times.
    peaks, size = trailing_max(required, ahead)[ahead:], rates.size - ahead
    errors = np.where(
        peaks > floor[:size], (peaks - forecasts[:size]) / np.sqrt(forecasts[:size]), -np.inf
    )
    strict = np.sort(errors)[::-1][int(risk * size)]
    assert score.cost_per_s == pytest.approx(cost(score.margin))
    assert score.cost_per_s <= cost(strict) + 1e-9
    assert score.margin <= strict


@pytest.mark.parametrize("jumps", [3, 4])
def test_no_margin_is_kept_for_jumps_that_it_would_not_cover(jumps):
    """Jumps to four times the load for three minutes miss more than the risk, at any margin."""
    level = np.full(14_400, 500.0)
    for begin in np.linspace(3600, 12_000, jumps).astype(int):
        level[begin : begin + 180] = np.minimum(2000, np.linspace(500, 14_000, 180))
    history = history_of(np.random.default_rng(1).poisson(level).astype(float))
    assert Backtest(history, 6).score(Candidate(PEAKS[0]), 0.01).margin < 10


@pytest.mark.parametrize("gap_s", [2_000.0, 72_000.0])
def test_nothing_is_learned_from_gaps(gap_s):
    rates = bursty(1, 9000)
    whole, gappy = history_of(rates), history_of(rates)
    whole_steps = Backtest(whole, 6).steps
    gappy.observe(9000.0 + gap_s, [900.0] * 10)
    backtest = Backtest(gappy, 6)
    assert backtest.steps <= whole_steps + 1
    assert backtest.score(Candidate(LAST), 0.01).margin == pytest.approx(
        Backtest(whole, 6).score(Candidate(LAST), 0.01).margin, rel=0.1
    )


def test_ratios_to_almost_nothing_do_not_inflate_the_demand():
    """An idle minute before a burst once asked for a hundred times the highest load ever seen."""
    rates = np.zeros(20_000)
    for begin in range(600, 20_000, 700):
        rates[begin : begin + 30] = 100.0
    history = history_of(rates)
    score = Backtest(history, 6).score(Candidate(LAST), 0.001)
    assert score.cost_per_s <= 1.1 * history.required_rates.values.max()


@pytest.mark.parametrize(
    ("costs", "incumbent", "chosen"),
    [
        ((100.0, 98.5, 99.0), None, 0),
        ((100.0, 97.0, 99.0), None, 1),
        ((100.0, 91.0, 90.0), 1, 1),
        ((100.0, 91.0, 90.0), None, 2),
        ((100.0, 91.0, 90.0), 0, 2),
    ],
)
def test_the_first_and_the_incumbent_stay_unless_another_saves_enough(costs, incumbent, chosen):
    candidates = [Candidate(point) for point in (LAST, *PEAKS[:2])]
    scores = [Score(one, 0.0, cost) for one, cost in zip(candidates, costs, strict=True)]
    before = None if incumbent is None else candidates[incumbent]
    assert choose_cheapest(scores, before, 0.02).candidate == candidates[chosen]
