"""A history fed in teaches what watching it would have taught."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.controller import Autoscaler
from autoscaler.forecasting.demand import DemandForecaster
from autoscaler.history import learning
from autoscaler.history.learning import (
    DAY_S,
    EVERY_S,
    KEPT_DAYS,
    FleetReplay,
    FleetSetting,
    Learned,
    learn,
    rates_by_second,
)
from autoscaler.history.traces import Trace
from policy.errors import InvalidInputError

SETTING = FleetSetting(
    forecast="auto",
    late_share_allowed=0.01,
    windows=0.99,
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
    forecaster = DemandForecaster("auto", SETTING.late_share_allowed)
    forecaster.load_state(learned.forecaster)
    return forecaster


def test_a_history_teaches_what_watching_it_would_have() -> None:
    counts = hourly_bursts(2 * 3600)
    learned = learn(trace_of(counts), SETTING)
    watching = FleetReplay(SETTING)
    for end_s in range(EVERY_S, counts.size + 1, EVERY_S):
        watching.decide(end_s, counts[end_s - EVERY_S : end_s])
    assert learned.forecaster == watching.forecaster.state_dict()
    assert learned.calibration == watching.calibration.state_dict()
    assert (learned.begin_s, learned.end_s) == (0, counts.size)


@LAWS
@given(
    st.integers(1, 4000), st.integers(60, 4000), st.integers(0, 500), st.integers(-(10**6), 10**6)
)
def test_a_forecaster_goes_on_with_another_as_if_it_had_watched(
    older_s: int, newer_s: int, gap_s: int, begin_s: int
) -> None:
    """Required rates look back a minute, so they agree from the second minute on."""
    begin_s = begin_s // EVERY_S * EVERY_S
    middle = begin_s + older_s
    later = -(-(middle + gap_s) // EVERY_S) * EVERY_S  # a history ends before a whole step
    counts = hourly_bursts(later + newer_s - begin_s, begin_s)
    whole, older, newer = (DemandForecaster("auto", 0.01) for _ in range(3))
    for forecaster in (whole, older):
        forecaster.observe(middle, counts[:older_s])
    for forecaster in (whole, newer):
        forecaster.observe(later + newer_s, counts[later - begin_s :])
    older.go_on_with(newer)
    assert older._history.end_s == whole._history.end_s
    np.testing.assert_array_equal(older._history.rates.values, whole._history.rates.values)
    np.testing.assert_array_equal(older._history.known.values, whole._history.known.values)
    np.testing.assert_array_equal(
        older._history.second_rates.values, whole._history.second_rates.values
    )
    kept = min(newer_s - 60, 1800)
    if kept > 0:
        np.testing.assert_array_equal(
            older._history.second_required_rates.values[-kept:],
            whole._history.second_required_rates.values[-kept:],
        )


def test_a_history_that_ends_too_late_is_refused_and_changes_nothing() -> None:
    older, newer = DemandForecaster(), DemandForecaster()
    older.observe(1000.0, np.ones(500))
    newer.observe(1100.0, np.ones(200))
    before = older.state_dict()
    with pytest.raises(InvalidInputError, match="the newer one must begin after the older"):
        older.go_on_with(newer)
    assert older.state_dict() == before


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
    history = forecaster_of(learned)._history
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


def test_older_days_than_four_weeks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "DAY_S", 60)  # a short day, so that four weeks are learned fast
    learned = learn(trace_of(np.full((KEPT_DAYS + 1) * 60, 9.0)), SETTING)
    assert (learned.begin_s, learned.end_s) == (60, (KEPT_DAYS + 1) * 60)


def test_requests_within_a_minute_are_a_poisson_process_drawn_with_a_fixed_seed() -> None:
    trace = trace_of(np.full(600, 60 * 50.0), step_s=60)
    drawn = rates_by_second(trace, np.random.default_rng(0))
    assert drawn.size == 36_000
    # Mean and variance of 36,000 Poisson counts of mean 50, to five standard errors.
    assert drawn.mean() == pytest.approx(50, abs=5 * np.sqrt(50 / drawn.size))
    assert drawn.var() == pytest.approx(50, abs=5 * 50 * np.sqrt(2 / drawn.size))
    short = trace_of(np.array([60.0, np.nan, 120.0]), step_s=60)
    assert np.isnan(rates_by_second(short, np.random.default_rng(0))).sum() == 60
    assert learn(short, SETTING) == learn(short, SETTING)


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
    assert unknown.windows_judged == 0
    assert judged[0] >= 15
    assert judged[1] == 0
    autoscaler = Autoscaler()
    autoscaler._monitor.calibration.load_state({"risk": 0.03, "judged": 9, "missed": 1})
    autoscaler.learn(learn(trace_of(minutes, step_s=60), SETTING))
    assert autoscaler.risk == pytest.approx(0.03)
    autoscaler = Autoscaler()
    autoscaler.learn(learn(trace_of(seconds), SETTING))
    assert autoscaler._monitor.calibration.judged == judged[0]


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
