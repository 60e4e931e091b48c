import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.forecasting.load_history import (
    KEPT_STEPS,
    STEP_S,
    WINDOW_S,
    LoadHistory,
    RequiredRate,
)
from policy.errors import InvalidInputError

rates = st.lists(st.floats(0, 1e4), min_size=1, max_size=150)


@given(rates, st.floats(0.0, 0.5))
def test_the_required_rate_leaves_exactly_the_share_unserved(seconds, share):
    window = RequiredRate(share, window_s=20)
    for second in seconds:
        required = window.push(second)
    seen = np.array(seconds[-20:])
    unserved = np.maximum(seen - required, 0).sum()
    assert 0 <= required <= seen.max() + 1e-9
    assert unserved == pytest.approx(share * seen.sum(), abs=1e-6)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(0, 30))
def test_pieces_and_overlaps_give_the_same_history(sizes, overlap):
    series = np.random.default_rng(1).poisson(50, sum(sizes)).astype(float)
    whole, pieces = LoadHistory(0.01), LoadHistory(0.01)
    whole.observe(1000.0 + series.size, series)
    end = 0
    for size in sizes:
        end += size
        pieces.observe(1000.0 + end, series[max(0, end - size - overlap) : end])
        pieces.observe(1000.0 + end - 1, series[:1])  # stale
    assert pieces.end_s == whole.end_s
    np.testing.assert_array_equal(pieces.rates.values, whole.rates.values)
    np.testing.assert_array_equal(pieces.required_rates.values, whole.required_rates.values)


@pytest.mark.parametrize("gap_s", [7, 61, 5 * 86_400])
def test_a_gap_is_filled_and_marked(gap_s):
    history = LoadHistory(0.0)
    history.observe(100.0, np.full(100, 40.0))
    history.observe(130.0 + gap_s, np.full(30, 10.0))
    assert history.end_s == 130 + gap_s
    known = history.known.values
    assert known.size == min(KEPT_STEPS, (130 + gap_s) // STEP_S)
    assert 0 < (known == 0).sum() <= gap_s // STEP_S + 2
    assert history.rates.values[np.flatnonzero(known == 0)[0]] > 10
    # After a long gap the last minute holds only new seconds.
    assert history.required_rate_per_s == (10 if gap_s > WINDOW_S else 40)


@given(rates, st.integers(0, 10**9))
def test_the_state_survives_json(seconds, start):
    history, restored = LoadHistory(0.01), LoadHistory(0.01)
    history.observe(float(start + len(seconds)), seconds)
    restored.load_state(json.loads(json.dumps(history.snapshot()())))
    assert restored.end_s == history.end_s
    biggest = max(seconds) + 1e-9
    for name in ("rates", "required_rates", "second_rates", "second_required_rates"):
        before, after = (getattr(one, name).values for one in (history, restored))
        np.testing.assert_allclose(after, before, rtol=1e-3, atol=1e-6 * biggest)
    more = np.full(30, 5.0)
    for one in (history, restored):
        one.observe(float(start + len(seconds) + 30), more)
    assert restored.required_rate_per_s == pytest.approx(
        history.required_rate_per_s, rel=1e-3, abs=1e-6 * biggest
    )


@pytest.mark.parametrize(("time_s", "rates"), [(10.0, [1.0, -1.0]), (np.inf, [1.0])])
def test_invalid_rates_are_refused(time_s, rates):
    with pytest.raises(InvalidInputError):
        LoadHistory(0.01).observe(time_s, rates)


def test_another_share_acts_on_the_last_minute_at_once():
    history, other = LoadHistory(0.0), LoadHistory(0.1)
    seconds = np.random.default_rng(2).poisson(50, 100).astype(float)
    for one in (history, other):
        one.observe(1000.0, seconds)
    history.unserved_share = 0.1
    for one in (history, other):
        one.observe(1001.0, [55.0])
    assert history.required_rate_per_s == other.required_rate_per_s


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("end"),
        lambda state: state["series"].update(rates=[1.0, "no base64 \x00"]),
    ],
)
def test_an_unusable_state_changes_nothing(change):
    history = LoadHistory()
    history.observe(3000.0, np.full(3000, 50.0))
    before = history.state_dict()
    state = LoadHistory().state_dict()
    change(state)
    with pytest.raises((KeyError, TypeError, ValueError)):
        history.load_state(state)
    assert history.state_dict() == before
