"""Event loop and device in tandem, against simulations and known limits.

The simulations are of another program, plain and slow; its results are kept as numbers.
"""

from dataclasses import replace

import numpy as np
import pytest

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.event_loop import EventLoopCosts
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from tests.support.profiles import GOOGLENET_P4

P4_MS = GOOGLENET_P4.latency_ms
LINEAR_MS = 0.1 + 0.09 * np.arange(1, 17)
FAST_MS = 0.025 + 0.001 * np.arange(1, 65)
EVENT_LOOPS = {
    "device": (P4_MS, EventLoopCosts(0.05, 0.1, shares_cpu=False)),
    "balanced": (LINEAR_MS, EventLoopCosts(0.09, 0.05, shares_cpu=False)),
    "event_loop": (FAST_MS, EventLoopCosts(0.08, 0.15, shares_cpu=False)),
}
# Bottleneck, control limit, max wait and rate; then p50, p95, p99 of five simulated runs of 250,000
# requests, and the mean batch size.
SIMULATED = [
    ("device", 1, None, 790.2, (2.4195, 3.6559, 4.2532), 1.504),
    ("device", 1, None, 2370.6, (6.3965, 11.1884, 13.7151), 9.027),
    ("device", 8, 8.0, 1580.0, (5.8863, 9.2785, 10.7987), 8.183),
    ("balanced", 1, None, 8600.0, (1.3948, 2.9369, 3.8506), 3.971),
    ("balanced", 4, 2.0, 5800.0, (0.9764, 1.5534, 1.8955), 4.138),
    ("event_loop", 1, None, 1200.0, (0.2560, 0.5129, 0.6883), 1.000),
    ("event_loop", 16, None, 7700.0, (1.3674, 2.5979, 3.1188), 16.000),
]


def tandem(bottleneck, **others):
    latency_ms, event_loop = EVENT_LOOPS[bottleneck]
    return Profile(bottleneck, "d", latency_ms, event_loop=event_loop, **others)


def percentiles_ms(evaluation, percentiles=(50, 95, 99)):
    return [evaluation.response_percentile_ms(percentile) for percentile in percentiles]


@pytest.mark.parametrize(
    ("bottleneck", "limit", "wait_ms", "rate", "expected_ms", "size"), SIMULATED
)
def test_percentiles_are_within_3_percent_of_a_simulation(
    bottleneck, limit, wait_ms, rate, expected_ms, size
):
    profile = tandem(bottleneck)
    policy = BatchingPolicy.from_control_limit(limit, profile.max_batch_size, wait_ms)
    evaluation = evaluate(profile, policy, rate)
    assert percentiles_ms(evaluation) == pytest.approx(expected_ms, rel=0.03)
    assert evaluation.mean_batch_size == pytest.approx(size, rel=0.01)


def test_a_table_that_leaves_requests_behind_is_followed_too():
    policy = BatchingPolicy((0, 0, 0, 3, 2, 3, 4), max_wait_ms=5.0)
    evaluation = evaluate(tandem("device"), policy, 800.0)
    assert percentiles_ms(evaluation, (50, 95)) == pytest.approx((3.2974, 6.4461), rel=0.03)
    assert evaluation.mean_batch_size == pytest.approx(2.837, rel=0.01)


def test_a_waiting_room_refuses_the_share_that_a_simulation_refuses():
    policy = BatchingPolicy.from_control_limit(1, 4)
    evaluation = evaluate(tandem("device"), policy, 1800.0, max_queue_rows=6)
    assert evaluation.full_probability == pytest.approx(0.1080, rel=0.02)


@pytest.mark.parametrize(("overload", "largest"), [(2.0, 4), (10.0, 1)])
def test_at_overload_a_waiting_room_leaves_the_device_as_busy_as_without_an_event_loop(
    largest, overload
):
    """The requests refused, most of the arrivals, take no place among those served."""
    exact = Profile("m", "d", P4_MS, energy_mj=np.arange(40.0, 72.0), idle_power_w=1.0)
    free = replace(exact, event_loop=EventLoopCosts(0.0, 0.0, shares_cpu=False))
    policy = BatchingPolicy.from_control_limit(1, largest)
    rate = overload * 1e3 * largest / P4_MS[largest - 1]
    expected, sampled = (evaluate(one, policy, rate, max_queue_rows=4) for one in (exact, free))
    assert sampled.full_probability == pytest.approx(expected.full_probability, rel=0.005)
    assert sampled.device_busy_fraction == pytest.approx(expected.device_busy_fraction, rel=0.005)
    assert sampled.mean_power_w == pytest.approx(expected.mean_power_w, rel=0.005)
    assert sampled.mean_batch_size == pytest.approx(expected.mean_batch_size, rel=0.005)


@pytest.mark.parametrize(("rate", "wait_ms"), [(1e-3, 4.0), (1e-320, None)])
def test_a_request_that_comes_alone_passes_event_loop_and_device_however_rarely_it_comes(
    rate, wait_ms
):
    profile = tandem("device", energy_mj=P4_MS)
    policy = BatchingPolicy.from_control_limit(1 if wait_ms is None else 2, 32, wait_ms)
    alone_ms = (wait_ms or 0.05) + P4_MS[0] + 0.1  # the event loop reads during the wait
    evaluation = evaluate(profile, policy, rate)
    assert evaluation.response_percentile_ms(50) == pytest.approx(alone_ms, rel=1e-4)
    assert evaluation.mean_response_ms == pytest.approx(alone_ms, rel=1e-3)
    least = max(rate, 1e-100)
    assert evaluation.device_busy_fraction == pytest.approx(1e-3 * least * P4_MS[0], rel=1e-3)
    assert evaluation.mean_power_w == pytest.approx(1e-3 * least * P4_MS[0], rel=1e-3)


def test_a_device_that_takes_no_time_leaves_a_queue_before_the_event_loop():
    """M/D/1 before the event loop; each answer takes what a request does, and so another round."""
    instant = Profile("m", "d", [1e-9], event_loop=EventLoopCosts(1.0, 0.0, shares_cpu=False))
    mean_ms = evaluate(instant, BatchingPolicy((0, 1)), 600.0).mean_response_ms
    # Pollaczek and Khinchine: a wait of ρs / 2(1 - ρ) before the service of 1 ms. The answer then
    # waits behind those who came meanwhile, of whom there are as many as one leaves behind: λ T.
    wait_ms = 0.6 / (2 * (1 - 0.6))
    assert mean_ms == pytest.approx((wait_ms + 1) * (1 + 0.6), rel=0.02)


def test_a_policy_that_the_event_loop_cannot_keep_up_with_is_refused_by_name():
    profile = tandem("event_loop")
    at_once = BatchingPolicy.from_control_limit(1, 64)
    with pytest.raises(
        InfeasibleError, match=r"in batches of 1.*, the event loop does not keep up"
    ):
        evaluate(profile, at_once, 6000.0)
    assert evaluate(profile, BatchingPolicy.from_control_limit(8, 64), 6000.0).mean_batch_size >= 8
    with pytest.raises(InfeasibleError, match=r"the event loop .* in batches of 64"):
        evaluate(profile, at_once, 13_000.0, max_queue_rows=100)
