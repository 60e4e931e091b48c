import heapq
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import expon, gamma

from autoscaler.sizing.rand import (
    busy_probability,
    rand_equilibrium,
    response_time_cdf,
    theorem_error_bound,
    waiting_time_percentile,
)
from policy.errors import InvalidInputError
from policy.try_delays import TryDelays

# λ = 70/s, n = 10, μ = 10/s: P_busy = 0.7; d₁, d₂, Δ = 1, 2, 5 ms.
LOAD = (70.0, 10, 10.0)
DELAYS = TryDelays(1.0, 2.0, 5.0)


def by_hand(t_ms, busy, execution_cdf, request_delay_ms, try_ms):
    """Sum Theorem 2 term by term, as the paper writes it."""
    total, retry = 0.0, 0
    while retry <= (t_ms - request_delay_ms) / try_ms:
        wait_ms = retry * try_ms + request_delay_ms
        total += busy**retry * (1 - busy) * execution_cdf(t_ms - wait_ms)
        retry += 1
    return total


def test_theorem_1_by_hand():
    expected = 1 + (math.log(0.01) / math.log(0.7) - 1) * 8
    assert waiting_time_percentile(99, *LOAD, DELAYS) == pytest.approx(expected, rel=1e-12)
    assert expected == pytest.approx(96.29, abs=0.01)


def test_every_request_waits_at_least_the_request_delay():
    assert waiting_time_percentile(10, *LOAD, DELAYS) == 1.0
    assert waiting_time_percentile(99, 0.0, 10, 10.0, DELAYS) == 1.0


def test_an_overloaded_fleet_never_answers():
    assert waiting_time_percentile(50, 100.0, 10, 10.0, DELAYS) == math.inf
    assert np.all(response_time_cdf([1e3, 1e9], 1.0, 20.0, DELAYS) == 0)
    found = rand_equilibrium(120.0, 10, lambda a: a / (a + 10))
    assert (found.attempt_rate_per_s, found.busy_probability) == (math.inf, 1.0)


@pytest.mark.parametrize("distribution", [expon(scale=100), gamma(4, scale=25)])
def test_theorem_2_by_hand(distribution):
    times = np.array([0.0, 0.5, 1.0, 9.0, 60.0, 333.3, 2500.0])
    expected = [by_hand(t, 0.7, distribution.cdf, 1.0, 8.0) for t in times]
    found = response_time_cdf(times, busy_probability(*LOAD), distribution.cdf, DELAYS)
    assert found == pytest.approx(expected, abs=1e-13)


@given(
    t_ms=st.floats(0, 2000),
    busy=st.floats(0, 0.999),
    execution_ms=st.floats(0.1, 100),
    request_ms=st.floats(0, 3),
    retry_ms=st.floats(0.5, 20),
    retries=st.none() | st.integers(0, 12),
)
def test_closed_form_equals_the_sum_for_a_constant_execution_time(
    t_ms, busy, execution_ms, request_ms, retry_ms, retries
):
    delays = TryDelays(request_ms, 0.0, retry_ms, retries)

    def step(left_ms):
        return (left_ms >= execution_ms - 1e-9 * (request_ms + retry_ms)).astype(float)

    closed = response_time_cdf(t_ms, busy, execution_ms, delays)
    summed = response_time_cdf(t_ms, busy, step, delays)
    assert closed == pytest.approx(summed, abs=1e-9)


def test_a_try_that_fits_exactly_counts():
    # (1.2 - 0.1 - 0.8) / 0.1 is 2.9999999999999996 in floating point.
    level = response_time_cdf(1.2, 0.5, 0.8, TryDelays(0.1, 0.0, 0.0))
    assert level == pytest.approx(1 - 0.5**4)


@pytest.mark.parametrize(
    ("replicas", "traffic_intensity", "retry_delay_ms"),
    [(4, 0.2, 0.0), (8, 0.2, 2.5), (8, 0.6, 0.0)],
)
def test_the_error_bound_of_theorem_2_holds_and_is_tight(
    replicas, traffic_intensity, retry_delay_ms
):
    theorem, simulated = shares_in_time(replicas, traffic_intensity, retry_delay_ms)
    overstated = (theorem - simulated)[theorem >= 0.9].max()
    bound = theorem_error_bound(traffic_intensity, replicas, 0.5 + retry_delay_ms, EXECUTION_MS)
    assert 0.6 * bound < overstated < bound + 0.002


EXECUTION_MS = 10.0


def shares_in_time(replicas, traffic_intensity, retry_delay_ms):
    """Return the shares of requests answered within some times: by Theorem 2, and simulated."""
    delays = TryDelays(0.25, 0.25, retry_delay_ms)
    response_ms = simulate_protocol(traffic_intensity * replicas / EXECUTION_MS, replicas, delays)
    times = np.linspace(10, 60, 400)
    theorem = response_time_cdf(times, traffic_intensity, EXECUTION_MS, delays)
    simulated = np.searchsorted(np.sort(response_ms), times, side="right") / response_ms.size
    return theorem, simulated


def simulate_protocol(rate_per_ms, replicas, delays, requests=40_000):
    """Simulate RAND with replicas that hold one request; return response times after warm-up."""
    rng = np.random.default_rng(7)
    arrivals_ms = np.cumsum(rng.exponential(1 / rate_per_ms, requests)).tolist()
    free_ms = [0.0] * replicas
    response_ms = np.empty(requests)
    attempts = [(time + delays.request_delay_ms, number) for number, time in enumerate(arrivals_ms)]
    picks: list[int] = []
    while attempts:
        now_ms, number = attempts[0]
        if not picks:
            picks = rng.integers(replicas, size=10_000).tolist()
        picked = picks.pop()
        if free_ms[picked] <= now_ms:
            heapq.heappop(attempts)
            free_ms[picked] = now_ms + EXECUTION_MS
            response_ms[number] = free_ms[picked] - arrivals_ms[number]
        else:
            heapq.heapreplace(attempts, (now_ms + delays.try_ms, number))
    return response_ms[requests // 10 :]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: waiting_time_percentile(100, *LOAD, DELAYS), "percentile"),
        (lambda: busy_probability(1, 0, 1), "replicas"),
        (lambda: busy_probability(1, 1, 0), "service_rate_per_s"),
    ],
)
def test_an_error_names_the_value_that_is_out_of_range(call, message):
    with pytest.raises(InvalidInputError, match=f"^{message}: "):
        call()


def test_replicas_that_hold_one_request_give_theorem_2():
    """Such a replica is full a/(a + μ) of the time (Erlang's loss formula)."""
    service_rate_per_s = 10.0
    for rate in (1.0, 35.0, 70.0, 99.0):
        found = rand_equilibrium(rate, 10, lambda a: a / (a + service_rate_per_s))
        theorem = busy_probability(rate, 10, service_rate_per_s)
        assert found.busy_probability == pytest.approx(theorem, rel=1e-9)
        assert found.attempt_rate_per_s == pytest.approx(rate / 10 / (1 - rate / 100))


@given(rate=st.floats(0.1, 500), retries=st.integers(0, 8), places=st.sampled_from([1, 4, 32]))
def test_with_a_limit_of_retries_the_rate_of_tries_solves_the_equation(rate, retries, places):
    def full(a):
        """Erlang's loss formula for `places` servers of 10/s each."""
        inverse = 1.0
        for k in range(1, places + 1):
            inverse = 1.0 + k * 10.0 / a * inverse
        return 1 / inverse

    found = rand_equilibrium(rate, 2, full, retries)
    p = found.busy_probability
    assert found.attempt_rate_per_s == pytest.approx(
        rate / 2 * sum(p**k for k in range(retries + 1)), rel=1e-6
    )
