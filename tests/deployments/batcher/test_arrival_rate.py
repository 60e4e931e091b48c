"""The batcher's estimate of its arrival rate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.batcher.arrival_rate import ArrivalRate


def test_the_rate_is_zero_before_the_first_arrival() -> None:
    assert ArrivalRate(5.0).per_s(100.0) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("rate_per_s", [2.0, 50.0, 3000.0])
def test_estimates_the_rate_of_a_poisson_stream(rate_per_s: float) -> None:
    window_s = 5.0
    rng = np.random.default_rng(1)
    estimate = ArrivalRate(window_s)
    now_s = 0.0
    seen = []
    for gap_s in rng.exponential(1 / rate_per_s, size=int(100 * window_s * rate_per_s)):
        now_s += gap_s
        estimate.count(now_s)
        seen.append(estimate.per_s(now_s))
    settled = seen[len(seen) // 10 :]
    # Right after an arrival, the estimate includes that arrival at full weight.
    assert np.mean(settled) == pytest.approx(rate_per_s + 1 / window_s, rel=0.05)
    # An exponential window has the variance of an average over 2 * window * rate arrivals.
    spread = rate_per_s / np.sqrt(2 * window_s * rate_per_s)
    assert np.std(settled) == pytest.approx(spread, rel=0.3)


def test_is_unbiased_before_a_window_has_passed() -> None:
    estimate = ArrivalRate(10.0)
    for number in range(100):
        estimate.count(0.01 * number)
    assert estimate.per_s(1.0) == pytest.approx(100.0, rel=0.1)


def test_decays_when_arrivals_stop() -> None:
    estimate = ArrivalRate(2.0)
    for number in range(1000):
        estimate.count(0.01 * number)
    assert estimate.per_s(20.0) < 1.0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50))
def test_arrivals_out_of_order_keep_the_rate_finite_and_nonnegative(times_s: list[float]) -> None:
    estimate = ArrivalRate(5.0)
    for time_s in times_s:
        estimate.count(time_s)
        assert 0.0 <= estimate.per_s(time_s) < 1e6
