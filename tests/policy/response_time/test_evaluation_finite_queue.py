from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.stats import poisson

from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.event_loop import EventLoopCosts
from policy.profile import Profile
from policy.response_time.control_limit_chain import ControlLimitQueue
from policy.response_time.control_limit_response import ControlLimitResponse
from policy.response_time.evaluation import evaluate
from tests.support.profiles import GOOGLENET_P4

ONE = Profile("one", "by one", np.array([2.0]), np.array([30.0]))
ONE_BY_ONE = BatchingPolicy.from_control_limit(1, 1)


def blocking_of_md1(offered_load, places):
    """M/D/1 with `places` in the system: 1 - 1 / (π₀ + ρ), π of the chain at departures.

    Takagi, Queueing Analysis, volume 2 (1993), equation 1.33 of M/G/1/K.
    """
    states = np.arange(places)
    left = np.maximum(states - 1, 0)[:, None]
    chain = poisson.pmf(states - left, offered_load)
    chain[:, -1] += 1 - chain.sum(axis=1)
    equations = np.vstack([chain.T - np.eye(places), np.ones(places)])
    stationary = np.linalg.lstsq(equations, np.append(np.zeros(places), 1.0), rcond=None)[0]
    return 1 - 1 / (stationary[0] + offered_load)


@pytest.mark.parametrize("offered_load", [0.1, 0.9, 1.5])
def test_without_a_queue_it_is_erlangs_loss_system(offered_load):
    evaluation = evaluate(ONE, ONE_BY_ONE, 500 * offered_load, max_queue_rows=0)
    assert evaluation.full_probability == pytest.approx(offered_load / (1 + offered_load))
    assert evaluation.response_percentile_ms(1) == pytest.approx(2.0)
    assert evaluation.response_percentile_ms(99.9) == pytest.approx(2.0)
    assert evaluation.mean_power_w == pytest.approx(15 * offered_load / (1 + offered_load))


@pytest.mark.parametrize("max_queue_rows", [1, 7, 30])
@pytest.mark.parametrize("offered_load", [0.2, 1.0, 1.4])
def test_without_batching_it_is_the_blocking_of_md1k(offered_load, max_queue_rows):
    evaluation = evaluate(ONE, ONE_BY_ONE, 500 * offered_load, max_queue_rows=max_queue_rows)
    expected = blocking_of_md1(offered_load, max_queue_rows + 1)
    assert evaluation.full_probability == pytest.approx(expected, rel=1e-8, abs=1e-13)


@settings(max_examples=30)
@given(
    st.floats(0.1, 2.0),
    st.integers(1, 8),
    st.one_of(st.none(), st.floats(0.0, 12.0)),
    st.integers(0, 30),
)
def test_every_request_is_served_or_refused_and_more_room_refuses_fewer(
    load, control_limit, max_wait_ms, more_room
):
    policy = BatchingPolicy.from_control_limit(control_limit, 8, max_wait_ms)
    rate = load * 8e3 / GOOGLENET_P4.latency_ms[7]
    evaluation, roomier = (
        evaluate(GOOGLENET_P4, policy, rate, max_queue_rows=control_limit + more_room + further)
        for further in (0, 1)
    )
    error = 1e-12 if evaluation.is_exact and roomier.is_exact else 0.01
    assert roomier.full_probability <= evaluation.full_probability + error
    batches_per_s = rate * (1 - evaluation.full_probability) / evaluation.mean_batch_size
    mean_batch_ms = evaluation.batch_size_probabilities[1:] @ GOOGLENET_P4.latency_ms[:8]
    busy = 1e-3 * batches_per_s * mean_batch_ms
    exact = evaluation.is_exact
    assert evaluation.device_busy_fraction == pytest.approx(busy, rel=1e-6 if exact else 0.01)
    assert evaluation.device_busy_fraction <= 1 + 1e-9
    if isinstance(evaluation.response_times, ControlLimitResponse):
        counted = evaluation.response_times.count
        assert counted == pytest.approx(evaluation.mean_batch_size, rel=1e-5)


@pytest.mark.parametrize("event_loop", [None, EventLoopCosts(0.01, 0.01, shares_cpu=False)])
def test_a_room_that_does_not_hold_what_a_table_waits_for_is_refused(event_loop):
    """With four waiting, this table waits for six, and no more come in."""
    table = BatchingPolicy((0, 1, 0, 0, 0, 0, 6))
    profile = replace(GOOGLENET_P4, event_loop=event_loop)
    with pytest.raises(InvalidInputError, match=r"max_queue_rows: must be at least 6, .* not 4"):
        evaluate(profile, table, 100.0, max_queue_rows=4)
    assert evaluate(profile, table, 100.0, max_queue_rows=6).mean_batch_size > 1
    with pytest.raises(InvalidInputError, match="must hold the control limit, 8, not 7"):
        evaluate(profile, BatchingPolicy.from_control_limit(8, 32), 300.0, max_queue_rows=7)


@pytest.mark.parametrize(("full_batches", "position", "places"), [(0, 1, 2), (1, 2, 1), (0, 3, 0)])
def test_behind_a_request_wait_only_those_let_in_before_its_batch_ended(
    full_batches, position, places
):
    """Until the batch ends the room holds `places` more; those that come later all find room."""
    rate, residual_ms, batch_ms = 0.8, 1.5, 2.5
    room = position + 4 * full_batches + places
    queue = ControlLimitQueue(rate, np.full(4, batch_ms), np.inf, room, 4)
    expected = np.zeros(5)
    for early in range(40):
        for later in range(40):
            behind = min(early, places) + later
            if behind < 5:
                expected[behind] += poisson.pmf(early, rate * residual_ms) * poisson.pmf(
                    later, rate * batch_ms * full_batches
                )
    found = queue.followers(5, np.array([residual_ms]), full_batches, position)
    assert_allclose(found[0], expected, atol=1e-12)
