import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.controller import Autoscaler
from autoscaler.forecasting.demand import DemandForecaster
from autoscaler.forecasting.load_history import LoadHistory
from autoscaler.history.learning import learn, store_history, stored_load
from autoscaler.history.source import HistorySource
from autoscaler.history.traces import Trace

LATE_SHARE = 0.01
LAWS = settings(max_examples=10)


def hourly_bursts(seconds):
    """Return a load of 30 requests/s that is 150 in the first two minutes of each hour."""
    rate = np.where(np.arange(seconds) % 3600 < 120, 150.0, 30.0)
    return np.random.default_rng(1).poisson(rate).astype(float)


def trace_of(counts, begin_s=0, step_s=1):
    return Trace(counts, step_s, begin_s, True)


@LAWS
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 300)), max_size=5))
def test_a_history_teaches_what_watching_it_would_have(gaps):
    """Unknown seconds are gaps."""
    counts = hourly_bursts(1200)
    for begin, length in gaps:
        counts[begin : begin + length] = np.nan
    watched = LoadHistory(LATE_SHARE)
    for second, rate in enumerate(counts):
        if not np.isnan(rate):
            watched.observe(second + 1.0, [rate])
    assert learn(trace_of(counts), LATE_SHARE).state_dict() == watched.state_dict()


def test_minutes_teach_the_same_margin_as_seconds_of_a_poisson_process():
    """Spread evenly over its minutes, the load would seem to need no margin."""
    seconds = np.random.default_rng(5).poisson(20, 3 * 3600).astype(float)
    minutes = seconds.reshape(-1, 60).sum(axis=1)
    forecasts = [
        DemandForecaster(learn(trace, LATE_SHARE)).forecast(seconds.size, 10.0, 0.05)
        for trace in (trace_of(seconds), trace_of(minutes, step_s=60))
    ]
    demands = [forecast.demand_per_s for forecast in forecasts if forecast]
    assert min(demands) > 25
    assert demands[1] == pytest.approx(demands[0], rel=0.15)


def test_what_was_watched_since_is_added_to_what_was_learned():
    counts = hourly_bursts(1200)
    autoscaler, seen = Autoscaler(), LoadHistory()
    seen.observe(1200.0, counts[900:])
    autoscaler._monitor.history = seen
    autoscaler.learn(learn(trace_of(counts[:900]), LATE_SHARE).state_dict())
    history = autoscaler._monitor.history
    assert history.end_s == 1200
    np.testing.assert_allclose(history.second_rates.values, counts, rtol=1e-3, atol=0.1)


@pytest.mark.slow
def test_a_history_is_learned_once_in_a_worker_and_again_if_it_changes(tmp_path):
    file = tmp_path / "past.csv"
    file.write_text("second,requests\n0,3\n9,4\n")
    stored: list[bytes] = []

    def store():
        source = HistorySource(str(file))
        return store_history(source, 1e9, LATE_SHARE, lambda: stored[-1] if stored else None, saved)

    def saved(content):
        stored.append(content)

    code = store()
    assert store() == code
    load = stored_load(stored[0], code)
    assert stored_load(stored[0], code + 1) is None
    assert restored(load).second_rates.values.sum() == pytest.approx(7, rel=1e-3)
    file.write_text("second,requests\n0,3\n9,5\n")
    assert store() != code
    assert len(stored) == 2


def restored(load):
    history = LoadHistory()
    history.load_state(load)
    return history
