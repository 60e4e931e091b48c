import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.scale_down import (
    MAX_GAP_S,
    RecentMaximum,
    ScaleDownStabilizer,
    default_scale_down_delay_s,
)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=30),
    st.integers(0, 8),
)
def test_the_recent_maximum_is_that_of_a_window(steps, length_s):
    maximum, seen, now_s = RecentMaximum(), [], 0
    for wait_s, value in steps:
        now_s += wait_s
        seen.append((now_s, value))
        recent = [value for time_s, value in seen if now_s - time_s <= length_s]
        assert maximum.add(now_s, value, length_s) == max(recent)


def test_the_highest_demand_of_the_delay_counts():
    stabilizer = ScaleDownStabilizer()
    for second, demand in enumerate([5.0, 9.0, 3.0, 7.0, 1.0, 2.0]):
        stabilizer.observe(second, demand, delay_s=3.0)
    assert stabilizer.stable_demand_per_s(2.0, 0.0) == 7.0
    stabilizer.observe(7.0, 1.0, delay_s=3.0)
    assert stabilizer.stable_demand_per_s(1.0, 0.0) == 2.0


def test_replicas_are_held_until_the_last_demand_that_needs_them_is_forgotten():
    stabilizer = ScaleDownStabilizer()
    for second, demand in enumerate([5.0, 9.0, 3.0, 7.0, 1.0, 2.0]):
        stabilizer.observe(second, demand, delay_s=60.0)
    for least, until_s in ((8.0, 61.0), (6.0, 63.0), (1.5, math.inf), (10.0, math.inf)):
        assert stabilizer.held_until_s(60.0, least.__le__) == until_s


def test_there_is_a_margin_for_the_noise_of_a_minute():
    """2400 arrivals in a minute have a standard deviation of 49, or 2%; the margin is four."""
    stabilizer = ScaleDownStabilizer()
    stabilizer.observe(0.0, 50.0, delay_s=10.0)
    stable_per_s = 50 * (1 + 4 / math.sqrt(2400))
    assert stabilizer.stable_demand_per_s(50.0, 40.0) == pytest.approx(stable_per_s)


def test_a_gap_starts_the_delay_over():
    """The demand during an outage of the controller is unknown."""
    stabilizer = ScaleDownStabilizer()
    stabilizer.observe(0.0, 1.0, delay_s=300.0)
    stabilizer.observe(MAX_GAP_S, 1.0, delay_s=300.0)
    assert stabilizer.watched_s(MAX_GAP_S) == MAX_GAP_S
    stabilizer.observe(1000.0, 1.0, delay_s=300.0)
    assert stabilizer.watched_s(1000.0) == 0.0


def test_the_delay_is_at_most_a_start_time_and_two_windows():
    assert default_scale_down_delay_s(start_time_s=300.0, window_s=10.0) == 20.0
    assert default_scale_down_delay_s(start_time_s=7.0, window_s=10.0) == 7.0
