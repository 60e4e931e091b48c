import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policy.batcher.limits import (
    ADMISSION_SHARE,
    MAX_QUEUE_ROWS,
    batch_size_within,
    limits_for,
)
from policy.event_loop import EventLoopCosts
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.try_delays import TryDelays

NO_DELAYS = TryDelays(0.0, 0.0, 0.0, 0)


def profile(full_batch_ms):
    return Profile("m", "d", np.linspace(min(10, full_batch_ms), full_batch_ms, 32))


def within(response_time_ms):
    return ServiceLevelObjective(response_time_ms, 99)


@pytest.mark.parametrize(
    ("response_time_ms", "full_batch_ms", "rows"),
    [(500, 216, 64), (1000, 1, MAX_QUEUE_ROWS)],
)
def test_the_waiting_room_holds_the_full_batches_that_fit_into_the_response_time(
    response_time_ms, full_batch_ms, rows
):
    delays = TryDelays(0.5, 0.25, 1.0, 3)
    limits = limits_for(profile(full_batch_ms), within(response_time_ms + 0.75), delays)
    assert (limits.try_ms, limits.retries, limits.concurrency) == (1.75, 3, None)
    assert limits.max_queue_rows == rows
    assert limits.max_batch_size == 32
    assert limits.max_age_ms == pytest.approx(0.97 * response_time_ms - full_batch_ms)
    assert limits.admit_within_ms == pytest.approx(ADMISSION_SHARE * response_time_ms)
    assert limits.answer_within_ms == pytest.approx(response_time_ms)


@given(
    st.lists(st.floats(0.0, 5.0), min_size=1, max_size=32),
    st.floats(0.1, 10.0),
    st.floats(1.0, 100.0),
)
@example([7.8] * 31, 8.2, 200.0)  # a full batch of 250 ms would answer nobody in time
@example(([0.0] * 7 + [1.0]) * 4, 61.0, 100.0)
def test_no_batch_that_fits_twice_has_a_higher_throughput(steps_ms, first_ms, response_time_ms):
    """If none does, it is the largest that takes no longer than a batch of one."""
    device = Profile("m", "d", first_ms + np.cumsum([0.0, *steps_ms]))
    chosen = batch_size_within(device, within(response_time_ms))
    rates = np.arange(1, device.max_batch_size + 1) / device.latency_ms
    fits = 2 * device.latency_ms <= ADMISSION_SHARE * response_time_ms
    if fits.any():
        assert fits[chosen - 1]
        assert rates[chosen - 1] >= (1 - 1e-9) * rates[fits].max()
    else:
        assert chosen == np.flatnonzero(device.latency_ms == device.latency_ms[0])[-1] + 1


@pytest.mark.parametrize(
    ("response_time_ms", "options"), [(500, {"serve_late": True}), (9, {}), (10, {})]
)
def test_late_requests_are_served_if_asked_for_or_if_all_would_be_late(response_time_ms, options):
    device = replace(profile(216), event_loop=EventLoopCosts(0.1, 0.0, shares_cpu=False))
    limits = limits_for(device, within(response_time_ms), NO_DELAYS, **options)
    assert limits.concurrency is None
    assert limits.admit_within_ms == limits.answer_within_ms == math.inf
    assert (limits.max_queue_rows, limits.max_batch_size) == (MAX_QUEUE_ROWS, 32)


def test_an_event_loop_beside_the_device_takes_its_time_after_the_batch():
    device = profile(40)
    event_loop = EventLoopCosts(0.1, 5.0, shares_cpu=False)
    limits = limits_for(replace(device, event_loop=event_loop), within(500), NO_DELAYS)
    without = limits_for(device, within(495), NO_DELAYS)
    assert limits == replace(without, concurrency=limits.concurrency)


@given(
    request_ms=st.floats(1e-3, 5),
    batch_ms=st.floats(0, 5),
    response_time_ms=st.floats(30, 1000),
    shares_cpu=st.booleans(),
)
def test_the_balancer_sends_what_the_event_loop_handles_in_a_part_of_the_response_time(
    request_ms, batch_ms, response_time_ms, *, shares_cpu
):
    event_loop = EventLoopCosts(request_ms, batch_ms, shares_cpu)
    limits = limits_for(
        replace(profile(1), event_loop=event_loop), within(response_time_ms), NO_DELAYS
    )
    # One batch on the device and one that gathers, whatever the event loop takes.
    batches = limits.concurrency / limits.max_batch_size
    assert batches >= 2
    handled_ms = limits.concurrency * event_loop.ms_per_request(limits.max_batch_size)
    assert batches == 2 or handled_ms <= 0.25 * response_time_ms + 2 * (request_ms + batch_ms)
