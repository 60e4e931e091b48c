import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.forecasting import demand
from autoscaler.forecasting.backtest import Candidate
from autoscaler.forecasting.demand import CANDIDATES, DemandForecaster
from autoscaler.forecasting.load_history import LoadHistory, RequiredRate
from autoscaler.forecasting.point_forecasts import LAST
from policy.errors import InvalidInputError

LAWS = settings(max_examples=25)
HORIZON_S = 60.0
RISK = 0.02


UNSERVED_SHARE = 0.005


def learned(rates):
    history = LoadHistory(UNSERVED_SHARE)
    history.observe(float(len(rates)), rates)
    return DemandForecaster(history)


def replay(rates, risk=RISK, warm_up=14_400, every=10):
    """Return demands after a warm-up, the highest rate required until each horizon, and methods."""
    forecaster = learned(rates[:warm_up])
    window = RequiredRate(UNSERVED_SHARE)
    required = np.array([window.push(rate) for rate in rates.tolist()])
    demands, peaks, methods = [], [], []
    for end in range(warm_up + every, rates.size - int(HORIZON_S), every):
        forecaster.history.observe(float(end), rates[end - every : end])
        seen = forecaster.forecast(float(end), HORIZON_S, risk)
        demands.append(seen.demand_per_s)
        methods.append(seen.method)
        peaks.append(required[end : end + int(HORIZON_S)].max())
    return np.array(demands), np.array(peaks), methods


@pytest.mark.slow
def test_the_demand_covers_a_stationary_load_at_the_risk():
    risk = 0.05
    rates = np.random.default_rng(3).poisson(100, 43_200).astype(float)
    demands, peaks, _ = replay(rates, risk=risk, every=20)
    assert 0.5 * risk <= np.mean(peaks > demands) <= 1.5 * risk
    assert demands.mean() < 1.06 * peaks.mean()


@LAWS
@given(
    st.lists(st.floats(0, 1e5), min_size=1, max_size=200),
    st.sampled_from(CANDIDATES),
    st.sampled_from([0.0, 10.0, 300.0]),
    st.floats(1e-4, 0.5),
    st.integers(0, 10**9),
)
def test_the_demand_covers_what_the_last_minute_required(rates, first, horizon_s, risk, start):
    forecaster = DemandForecaster(LoadHistory(UNSERVED_SHARE), first.name)
    forecaster.history.observe(float(start + len(rates)), rates)
    seen = forecaster.forecast(float(start + len(rates)), horizon_s, risk)
    window = RequiredRate(UNSERVED_SHARE)
    for rate in rates:
        required = window.push(rate)
    assert math.isfinite(seen.demand_per_s)
    assert seen.demand_per_s >= required - 1e-9
    assert seen.expected_per_s >= 0
    assert seen.demand_per_s == pytest.approx(
        seen.margin * seen.expected_per_s if seen.expected_per_s else seen.demand_per_s
    )


def test_a_new_service_keeps_headroom_on_top_of_the_last_two_minutes():
    seen = learned(np.full(150, 100.0)).forecast(150.0, HORIZON_S, 0.001)
    assert seen.demand_per_s == pytest.approx(120, rel=0.01)


def test_a_new_service_whose_load_climbs_is_ahead_of_its_highest_rate():
    """A margin that the climb has shown to be needed was cut at a tenth above the past."""
    seconds = np.arange(240)
    seen = learned(20 + 0.5 * seconds).forecast(240.0, 20.0, 0.01)
    assert seen.demand_per_s > 20 + 0.5 * (240 + 20)


@pytest.mark.slow
def test_expecting_recurring_peaks_is_cheaper(monkeypatch):
    """At half past every hour the load is four times as high for five minutes."""
    rng = np.random.default_rng(7)
    seconds = np.arange(14 * 3600)
    level = np.where((seconds % 3600 >= 1800) & (seconds % 3600 < 2100), 400, 100)
    rates = rng.poisson(level).astype(float)
    warm_up = 8 * 3600
    demands, peaks, methods = replay(rates, risk=0.005, warm_up=warm_up)
    monkeypatch.setattr(demand, "CANDIDATES", (Candidate(LAST),))
    plain, _, _ = replay(rates, risk=0.005, warm_up=warm_up)
    assert "jumps" in methods[-1]
    assert not np.any(peaks > 1.5 * demands)
    assert demands.mean() < 0.6 * plain.mean()
    # The demand rises in time for the jump, and falls after the burst.
    times = warm_up + 10 * (1 + np.arange(demands.size))
    at = {phase: demands[(times % 3600) == phase].min() for phase in (1740, 1790)}
    assert min(at.values()) > 380
    assert demands[(times % 3600) == 600].max() < 200


def test_silence_lengthens_the_horizon_and_a_short_one_does_not():
    rng = np.random.default_rng(9)
    rates = rng.poisson(100 * np.exp(np.repeat(np.cumsum(rng.normal(0, 0.05, 400)), 50)))
    forecaster = learned(rates.astype(float))
    now = forecaster.forecast(20_000.0, HORIZON_S, RISK).demand_per_s
    assert forecaster.forecast(20_003.0, HORIZON_S, RISK).demand_per_s == now
    assert forecaster.forecast(20_200.0, HORIZON_S, RISK).demand_per_s > now


@pytest.mark.parametrize(("horizon_s", "risk"), [(math.inf, 0.01), (60.0, 0.0)])
def test_values_out_of_range_are_refused(horizon_s, risk):
    with pytest.raises(InvalidInputError):
        learned([1.0]).forecast(1.0, horizon_s, risk)
