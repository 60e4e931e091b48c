"""The way through a balancer: laws, and a simulation of the two stations."""

import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.response_time.way import BalancerLoad, ClientResponseTimes

ONE_BY_ONE = BatchingPolicy.from_control_limit(1, 1)


@settings(max_examples=25)
@given(
    balancer_ms=st.floats(0.001, 10),
    load=st.floats(0, 0.9),
    batch_size=st.floats(1, 32),
)
def test_the_mean_is_that_of_pollaczek_and_khinchine(
    balancer_ms: float, load: float, batch_size: float
) -> None:
    way_ms = BalancerLoad(balancer_ms, load).way_ms(batch_size)
    one_way_ms = balancer_ms / 2
    wait_ms = load * one_way_ms / (2 * (1 - load))
    answers_before = np.floor(np.linspace(0, batch_size, 10_000, endpoint=False)).mean()
    expected_ms = balancer_ms + 2 * wait_ms + one_way_ms * answers_before
    assert way_ms.mean() == pytest.approx(expected_ms, rel=0.05)
    assert way_ms.min() >= balancer_ms * (1 - 1e-9)


@settings(max_examples=25)
@given(waits_ms=st.lists(st.floats(0, 20), min_size=1, max_size=50).map(tuple))
def test_where_waits_were_seen_both_ways_wait_like_them(waits_ms: tuple[float, ...]) -> None:
    way_ms = BalancerLoad(0.1, 0.9, waits_ms).way_ms(1.0)
    mean_ms = float(np.mean(waits_ms))
    assert way_ms.mean() == pytest.approx(0.1 + 2 * mean_ms, rel=0.1, abs=0.01)
    assert way_ms.min() >= 0.1 + 2 * min(waits_ms) - 1e-9
    assert way_ms.max() <= 0.1 + 2 * max(waits_ms) + 1e-9


def test_a_balancer_that_takes_no_time_changes_nothing() -> None:
    replica = evaluate(Profile("m", "d", np.array([1.0])), ONE_BY_ONE, 500.0).response_times
    clients = ClientResponseTimes(replica, BalancerLoad(0.0, 0.5).way_ms(4.0))
    for share in (0.5, 0.95, 0.99):
        assert clients.quantile(share) == pytest.approx(replica.quantile(share), rel=1e-6)
    assert clients.mean_ms == replica.mean_ms


def simulated_ms(rate_per_ms: float, one_way_ms: float, service_ms: float) -> list[float]:
    """Follow requests through a balancer, a replica that serves one by one, and back."""
    random = np.random.default_rng(1)
    arrivals_ms = np.cumsum(random.exponential(1 / rate_per_ms, 60_000)).tolist()
    # Jobs of the balancer in order of time: (time, is an answer, number).
    jobs = [(time_ms, False, number) for number, time_ms in enumerate(arrivals_ms)]
    heapq.heapify(jobs)
    responses_ms = [math.nan] * len(arrivals_ms)
    balancer_free_ms = replica_free_ms = 0.0
    while jobs:
        time_ms, is_answer, number = heapq.heappop(jobs)
        balancer_free_ms = max(balancer_free_ms, time_ms) + one_way_ms
        if is_answer:
            responses_ms[number] = balancer_free_ms - arrivals_ms[number]
        else:
            replica_free_ms = max(replica_free_ms, balancer_free_ms) + service_ms
            heapq.heappush(jobs, (replica_free_ms, True, number))
    return responses_ms


@pytest.mark.slow
@pytest.mark.parametrize(("balancer_load", "replica_load"), [(0.2, 0.3), (0.3, 0.6), (0.3, 0.8)])
def test_percentiles_are_those_of_a_simulation_of_both(
    balancer_load: float, replica_load: float
) -> None:
    service_ms = 0.2
    rate_per_ms = replica_load / service_ms
    balancer_ms = balancer_load / rate_per_ms
    profile = Profile("m", "d", np.array([service_ms]))
    replica = evaluate(profile, ONE_BY_ONE, 1e3 * rate_per_ms).response_times
    clients = ClientResponseTimes(replica, BalancerLoad(balancer_ms, balancer_load).way_ms(1.0))
    simulated = simulated_ms(rate_per_ms, balancer_ms / 2, service_ms)
    for percentile in (50, 95, 99):
        expected_ms = float(np.percentile(simulated, percentile))
        assert clients.quantile(percentile / 100) == pytest.approx(expected_ms, rel=0.1)


@pytest.mark.parametrize("costs", [(-1.0, 0.1), (math.inf, 0.1), (1.0, 1.0), (1.0, -0.1)])
def test_costs_out_of_range_are_refused(costs: tuple[float, float]) -> None:
    with pytest.raises(InvalidInputError, match=r"^balancer: "):
        BalancerLoad(*costs)
