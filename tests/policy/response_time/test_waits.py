"""Waits at a free device, against simulations of single waits (equations 17 to 23)."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from policy.response_time.quadrature import Panels
from policy.response_time.queue_system import QueueSystem
from policy.response_time.waits import (
    WaitForArrivals,
    WaitForArrivalsOrTimer,
    WaitForNextArrival,
)

RATE = 0.8
WAITS = 200_000
TIMES = np.linspace(0.5, 12, 24)


def test_a_wait_for_arrivals_is_an_erlang_time():
    random = np.random.default_rng(1)
    responses = 0.7 + random.gamma(3, 1 / RATE, WAITS) + 2.0
    wait = WaitForArrivals(RATE, np.array([0.7]), np.array([5.0]), 3, 2.0)
    simulated = 5 * np.searchsorted(np.sort(responses), TIMES) / WAITS
    assert_allclose(wait.count_within(TIMES), simulated, atol=0.02)
    assert wait.total_response_ms == pytest.approx(5 * responses.mean(), rel=0.01)


def test_a_wait_for_the_next_arrival_has_the_kink_at_its_beginning():
    panels = Panels(np.linspace(1.0, 3.0, 5))
    wait = WaitForNextArrival(RATE, panels, np.full(panels.nodes_ms.shape, 2.0), 1.5)
    # 2 ∫ (1 - exp(-λ (u - s))) ds over the ages s from 1 to min(u, 3), u = t - 1.5.
    u = TIMES - 1.5
    end = np.clip(u, 1.0, 3.0)
    grown = (np.exp(-RATE * np.maximum(u - end, 0)) - np.exp(-RATE * np.maximum(u - 1, 0))) / RATE
    assert_allclose(wait.count_within(TIMES), 2 * (end - 1 - grown), atol=1e-7)
    assert wait.count == pytest.approx(4.0)
    assert wait.total_response_ms == pytest.approx(4 * (2 + 1 / RATE + 1.5))


@pytest.mark.parametrize(
    ("length", "start", "age"), [(1, 2, 0.0), (1, 5, 0.0), (3, 4, 1.1), (2, 6, 0.4)]
)
def test_a_wait_with_a_timer_is_that_of_a_simulation(length, start, age):
    max_wait_ms, missing = 3.0, start - length
    batch_times_ms = np.array([1.0, 1.2, 1.5, 1.9, 2.4, 3.0])
    system = QueueSystem(RATE, batch_times_ms, max_wait_ms, None)
    found = WaitForArrivalsOrTimer(system, np.array([age]), np.array([1.0]), length, start)

    random = np.random.default_rng(2)
    arrivals = np.cumsum(random.exponential(1 / RATE, (WAITS, missing)), axis=1)
    left = max_wait_ms - age
    started = np.minimum(arrivals[:, -1], left)
    came = np.sum(arrivals <= started[:, None], axis=1)
    batch_ms = batch_times_ms[length + came - 1]
    responses = [age + started + batch_ms]
    responses += [random.uniform(0, age, WAITS) + started + batch_ms for _ in range(length - 1)]
    for number in range(missing):
        mine = came > number
        responses.append(started[mine] - arrivals[mine, number] + batch_ms[mine])
    everyone = np.sort(np.concatenate(responses))
    # Slightly later: many response times are equal but for rounding.
    times = TIMES * (1 + 1e-9)
    simulated = np.searchsorted(everyone, times) / WAITS
    assert_allclose(found.count_within(times), simulated, atol=0.02)
    assert found.count == pytest.approx(everyone.size / WAITS, rel=0.01)
    assert found.total_response_ms == pytest.approx(everyone.sum() / WAITS, rel=0.01)
