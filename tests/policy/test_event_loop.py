import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.errors import InvalidInputError
from policy.event_loop import EventLoopCosts
from policy.profile import Profile

LATENCY_MS = np.array([1.0, 1.2, 1.4, 1.6])

costs_ms = st.floats(0, 5)


def profile_with(event_loop: EventLoopCosts | None, **others):
    return Profile("m", "d", LATENCY_MS, event_loop=event_loop, **others)


@pytest.mark.parametrize(
    ("event_loop", "message"),
    [
        ([1.0, 2.0], "must be an object with the keys request_ms, batch_ms, shares_cpu"),
        ({"request_ms": 1, "batch_ms": 0, "shares_cpu": True, "x": 1}, "keys request_ms"),
        ({"request_ms": -1.0, "batch_ms": 0.0, "shares_cpu": True}, "at least 0, not -1"),
        ({"request_ms": 1, "batch_ms": 10**400, "shares_cpu": True}, "finite numbers, not 10"),
        ({"request_ms": 1.0, "batch_ms": 0.0, "shares_cpu": 1}, "must be true or false, not 1"),
    ],
)
def test_a_malformed_event_loop_is_refused(event_loop, message):
    with pytest.raises(InvalidInputError, match=message):
        Profile.from_dict({"latency_ms": [1.0], "event_loop": event_loop})


@given(request_ms=costs_ms, batch_ms=costs_ms)
def test_in_serial_a_batch_takes_the_time_of_both(request_ms, batch_ms):
    serial = profile_with(EventLoopCosts(request_ms, batch_ms, shares_cpu=True)).serial()
    expected_ms = LATENCY_MS + batch_ms + request_ms * np.arange(1, 5)
    np.testing.assert_allclose(serial.latency_ms, expected_ms)
    assert serial.event_loop is None
    assert serial.serial() is serial


@given(request_ms=costs_ms, batch_ms=costs_ms)
def test_the_capacity_in_tandem_is_that_of_the_slower_stage(request_ms, batch_ms):
    profile = profile_with(EventLoopCosts(request_ms, batch_ms, shares_cpu=False))
    by_size = [
        1e3 * size / max(ms, batch_ms + size * request_ms)
        for size, ms in enumerate(LATENCY_MS, start=1)
    ]
    assert profile.capacity_per_s == pytest.approx(max(by_size))
    assert by_size[profile.best_batch_size - 1] == pytest.approx(max(by_size))
    serial = profile_with(EventLoopCosts(request_ms, batch_ms, shares_cpu=True))
    assert serial.capacity_per_s == pytest.approx(serial.serial().capacity_per_s)


def test_the_bottleneck_is_the_stage_that_spends_more_per_request():
    profile = profile_with(EventLoopCosts(0.6, 0.2, shares_cpu=False))
    assert profile.bottleneck(100.0) == "device"  # alone: 0.8 against 1 ms
    assert profile.bottleneck(1400.0) == "event_loop"  # in twos: 0.7 against 0.6 ms
    assert profile.bottleneck(100.0, mean_batch_size=4) == "event_loop"
    assert profile_with(None).bottleneck(100.0) == "device"
