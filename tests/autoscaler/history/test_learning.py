"""A history fed in teaches what watching it would have taught."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.controller import Autoscaler
from autoscaler.forecasting.demand import DemandForecaster
from autoscaler.forecasting.load_history import LoadHistory
from autoscaler.history import learning
from autoscaler.history.learning import (
    DAY_S,
    EVERY_S,
    KEPT_DAYS,
    FleetReplay,
    FleetSetting,
    Learned,
    learn,
)
from autoscaler.history.traces import Trace

SETTING = FleetSetting(
    late_share_allowed=0.01,
    compliant_share=0.99,
    start_time_s=60.0,
    scale_down_delay_s=20.0,
    sla_rate_per_s=20.0,
    fleet_rate_per_s=22.0,
)
LAWS = settings(max_examples=25, derandomize=True, deadline=None)


def hourly_bursts(seconds: int, begin_s: int = 0, seed: int = 1) -> np.ndarray:
    """Return a load of 30 requests/s that is 150 in the first two minutes of each hour."""
    times = begin_s + np.arange(seconds)
    rate = np.where(times % 3600 < 120, 150.0, 30.0)
    return np.random.default_rng(seed).poisson(rate).astype(float)


def trace_of(counts: np.ndarray, begin_s: int = 0, step_s: int = 1) -> Trace:
    return Trace(counts, step_s, begin_s, True)


def forecaster_of(learned: Learned) -> DemandForecaster:
    history = LoadHistory(SETTING.late_share_allowed)
    history.load_state(learned.load)
    return DemandForecaster(history, learned.method)


def test_a_history_teaches_what_watching_it_would_have() -> None:
    counts = hourly_bursts(2 * 3600)
    learned = learn(trace_of(counts), SETTING)
    watching = FleetReplay(SETTING)
    for end_s in range(EVERY_S, counts.size + 1, EVERY_S):
        watching.decide(end_s, counts[end_s - EVERY_S : end_s])
    assert learned.load == watching.load.state_dict()
    assert learned.method == watching.forecaster.method
    assert learned.calibration == watching.calibration.state_dict()
    assert (learned.begin_s, learned.end_s) == (0, counts.size)


@settings(LAWS, max_examples=10)
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 300)), max_size=5))
def test_unknown_seconds_are_gaps(gaps: list[tuple[int, int]]) -> None:
    counts = hourly_bursts(1200)
    for begin, length in gaps:
        counts[begin : begin + length] = np.nan
    learned = learn(trace_of(counts), SETTING)
    known = ~np.isnan(counts)
    by_step = known[: np.flatnonzero(known)[-1] + 1]
    by_step = by_step[np.argmax(by_step) :]
    history = forecaster_of(learned).history
    assert history.second_known.values.sum() == by_step[-1800:].sum()


@pytest.mark.parametrize("shift_s", [-7 * DAY_S, 7 * DAY_S])
def test_whole_weeks_earlier_or_later_the_same_is_learned(shift_s: int) -> None:
    """The simulator's past is at negative times."""
    counts = hourly_bursts(3600)
    here, there = (learn(trace_of(counts, begin_s), SETTING) for begin_s in (3600, 3600 + shift_s))
    assert here.calibration == there.calibration
    for risk in (0.01, 0.1):
        end_s = 3600 + counts.size
        assert forecaster_of(here).forecast(end_s, 60.0, risk) == forecaster_of(there).forecast(
            end_s + shift_s, 60.0, risk
        )


def test_older_days_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "DAY_S", 60)  # a short day, so that all is learned fast
    learned = learn(trace_of(np.full((KEPT_DAYS + 1) * 60, 9.0)), SETTING)
    assert (learned.begin_s, learned.end_s) == (60, (KEPT_DAYS + 1) * 60)


def test_minutes_teach_the_same_margin_as_seconds_of_a_poisson_process() -> None:
    """Spread evenly over its minutes, the load would seem to need no margin."""
    seconds = np.random.default_rng(5).poisson(20, 3 * 3600).astype(float)
    minutes = seconds.reshape(-1, 60).sum(axis=1)
    demands = [
        forecaster_of(learn(trace, SETTING)).forecast(seconds.size, 10.0, 0.05).demand_per_s
        for trace in (trace_of(seconds), trace_of(minutes, step_s=60))
    ]
    assert min(demands) > 25
    assert demands[1] == pytest.approx(demands[0], rel=0.15)


def test_the_risk_is_learned_from_seconds_and_not_from_minutes() -> None:
    seconds = hourly_bursts(1200)
    minutes = seconds.reshape(-1, 60).sum(axis=1)
    judged = [
        learn(trace, SETTING).calibration["judged"]
        for trace in (trace_of(seconds), trace_of(minutes, step_s=60))
    ]
    unknown = learn(trace_of(seconds), replace(SETTING, sla_rate_per_s=0.0))
    assert unknown.calibration["judged"] == 0
    assert judged[0] >= 15
    assert judged[1] == 0
    autoscaler = Autoscaler()
    autoscaler._replicas.calibration.load_state({"risk": 0.03, "judged": 9, "missed": 1})
    autoscaler.learn(learn(trace_of(minutes, step_s=60), SETTING))
    assert autoscaler.risk == pytest.approx(0.03)
    autoscaler = Autoscaler()
    autoscaler.learn(learn(trace_of(seconds), SETTING))
    assert autoscaler._replicas.calibration.judged == judged[0]


def test_a_controller_goes_on_from_what_was_learned() -> None:
    counts = hourly_bursts(600)
    learned = learn(trace_of(counts), SETTING)
    autoscaler = Autoscaler()
    assert autoscaler.fleet_setting() is None
    assert autoscaler.watched_s(1e9) == 0
    assert autoscaler.forecasts_from_s(1e9) == 1e9
    autoscaler.learn(learned)
    assert autoscaler.risk == pytest.approx(learned.calibration["risk"])
    restarted = Autoscaler()
    restarted.load_state(json.loads(json.dumps(autoscaler.state_dict())))
    assert restarted.forecasts_from_s(1e9) == 0


def test_what_was_watched_since_is_added_to_what_was_learned() -> None:
    counts = hourly_bursts(1200)
    autoscaler, seen = Autoscaler(), LoadHistory()
    seen.observe(1200.0, counts[900:])
    autoscaler._monitor.history = seen
    autoscaler.learn(learn(trace_of(counts[:900]), SETTING))
    history = autoscaler._monitor.history
    assert history.end_s == 1200
    np.testing.assert_allclose(history.second_rates.values, counts, rtol=1e-3, atol=0.1)
