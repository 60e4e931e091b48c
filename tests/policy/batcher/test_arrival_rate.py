import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.batcher.arrival_rate import LONGEST_PAUSE, PAUSE_MARGIN_S, ArrivalRate


def test_estimates_the_rate_of_a_poisson_stream():
    estimate, window_s, rate_per_s = ArrivalRate(5.0), 5.0, 50.0
    times_s = np.cumsum(np.random.default_rng(1).exponential(1 / rate_per_s, size=25_000)).tolist()
    seen = []
    for now_s in times_s:
        estimate.count(now_s)
        seen.append(estimate.per_s(now_s))
    settled = seen[2500:]
    # Right after an arrival, the estimate includes that arrival at full weight.
    assert np.mean(settled) == pytest.approx(rate_per_s + 1 / window_s, rel=0.05)
    # An exponential window has the variance of an average over 2 * window * rate arrivals.
    assert np.std(settled) == pytest.approx(
        rate_per_s / np.sqrt(2 * window_s * rate_per_s), rel=0.3
    )


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50))
def test_arrivals_out_of_order_keep_the_rate_finite_and_nonnegative(times_s):
    estimate = ArrivalRate(5.0)
    for time_s in times_s:
        estimate.count(time_s)
        assert 0.0 <= estimate.per_s(time_s) < 1e6


@pytest.mark.parametrize(("rate_per_s", "rows"), [(2.0, 32), (50.0, 1), (3000.0, 32)])
def test_poisson_arrivals_stay_below_the_confidence_bound_of_their_rate(rate_per_s, rows):
    estimate = ArrivalRate(5.0)
    estimate.horizon_s = 0.02
    now_s = 0.0
    for gap_s in np.random.default_rng(2).exponential(1 / rate_per_s, size=20_000):
        now_s += gap_s
        estimate.count(now_s, rows)
        assert estimate.bounded_per_s(now_s) == estimate.per_s(now_s)


@pytest.mark.parametrize("rows", [1, 32])
def test_a_load_that_dropped_is_believed_within_two_horizons(rows):
    """After 20,000 requests/s, 50/s were taken for 9,000/s four seconds later."""
    estimate = ArrivalRate(5.0)
    estimate.horizon_s = 0.1
    gaps_s = np.random.default_rng(3).exponential(1 / 20_000, 100_000)
    for now_s in np.cumsum(gaps_s).tolist():
        estimate.count(min(now_s, 5.0), rows)
    assert estimate.per_s(5.0) == pytest.approx(20_000.0 * rows, rel=0.05)
    for number in range(1, 16):
        estimate.count(5.0 + 0.02 * number, rows)
    # No request at all has the bound 25: that is the least, whatever the rate.
    assert 50 * rows < estimate.bounded_per_s(5.3) < 500 * rows
    assert estimate.per_s(5.3) > 18_000 * rows


@given(
    st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 64)), min_size=1, max_size=80),
    st.floats(0, 20),
    st.floats(0.01, 1.0),
)
def test_a_pause_that_is_too_long_for_the_rate_lowers_it_to_one_request_in_the_pause(
    arrivals, pause_s, share
):
    estimate = ArrivalRate(5.0)
    estimate.horizon_s = 0.1
    now_s, requests = 0.0, 0.0
    for gap_s, rows in arrivals:
        now_s += gap_s
        estimate.count(now_s, rows)
        requests = requests * np.exp(-gap_s / 5.0) + 1
    before = estimate.bounded_per_s(now_s)
    assert 0 < before <= estimate.per_s(now_s)
    rows_per_request = estimate.weight / requests
    after = estimate.bounded_per_s(now_s + pause_s)
    if pause_s * before > (1 + 1e-9) * LONGEST_PAUSE * rows_per_request:
        assert after == pytest.approx(rows_per_request / pause_s)
    elif pause_s * before < (1 - 1e-9) * LONGEST_PAUSE * rows_per_request:
        assert after == before
    falls_s = estimate.falls_below_s(share * after)
    assert estimate.bounded_per_s(falls_s) < share * after
    assert estimate.bounded_per_s(falls_s - 2 * PAUSE_MARGIN_S) >= share * after
