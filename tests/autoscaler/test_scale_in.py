import json
import math

import pytest

from autoscaler.scale_in import MAX_GAP_S, ScaleInGuard, acquaintance_s, measured_delay_s


def test_the_highest_demand_of_the_hold_counts():
    guard = ScaleInGuard()
    for second, demand in enumerate([5.0, 9.0, 3.0, 7.0, 1.0, 2.0]):
        guard.observe(second, demand, scale_down_delay_s=3.0)
    assert guard.cautious_demand_per_s(2.0, 0.0, 10.0) == 7.0
    guard.observe(7.0, 1.0, scale_down_delay_s=3.0)
    assert guard.cautious_demand_per_s(1.0, 0.0, 10.0) == 2.0


def test_there_is_a_margin_for_the_noise_of_a_window():
    """400 arrivals in a window have a standard deviation of 20, or 5%; the margin is four."""
    guard = ScaleInGuard()
    guard.observe(0.0, 50.0, scale_down_delay_s=10.0)
    assert guard.cautious_demand_per_s(50.0, 40.0, 10.0) == pytest.approx(
        50 * (1 + 4 / math.sqrt(400))
    )


def test_an_interruption_starts_the_hold_over():
    guard = ScaleInGuard()
    guard.observe(100.0, 1.0, scale_down_delay_s=10.0)
    assert guard.watched_s(130.0) == 30.0
    guard.interrupt()
    assert guard.watched_s(131.0) == 0.0
    guard.observe(140.0, 1.0, scale_down_delay_s=10.0)
    assert guard.watched_s(145.0) == 5.0


def test_the_state_survives_json():
    guard = ScaleInGuard()
    guard.first_fleet = 3
    for second, demand in enumerate([5.0, 9.0, 3.0, 7.0]):
        guard.observe(second, demand, scale_down_delay_s=60.0)
    restored = ScaleInGuard.from_state(json.loads(json.dumps(guard.state_dict())))
    for one in (guard, restored):
        one.observe(9.0, 1.0, scale_down_delay_s=60.0)
    assert (
        restored.cautious_demand_per_s(1.0, 0.0, 10.0)
        == guard.cautious_demand_per_s(1.0, 0.0, 10.0)
        == 9.0
    )
    assert restored.watched_s(9.0) == 9.0
    assert restored.first_fleet == 3


def test_a_gap_starts_the_hold_over():
    """The demand during an outage of the controller is unknown."""
    guard = ScaleInGuard()
    guard.observe(0.0, 1.0, scale_down_delay_s=300.0)
    guard.observe(MAX_GAP_S, 1.0, scale_down_delay_s=300.0)
    assert guard.watched_s(MAX_GAP_S) == MAX_GAP_S
    restored = ScaleInGuard.from_state(json.loads(json.dumps(guard.state_dict())))
    restored.observe(1000.0, 1.0, scale_down_delay_s=300.0)
    assert restored.watched_s(1000.0) == 0.0


def test_the_hold_is_at_most_a_start_time_and_two_windows():
    assert measured_delay_s(start_time_s=300.0, window_s=10.0) == 20.0
    assert measured_delay_s(start_time_s=7.0, window_s=10.0) == 7.0


def test_a_stranger_watches_for_five_minutes_or_a_minute_beyond_a_start():
    assert acquaintance_s(10.0) == 300.0
    assert acquaintance_s(600.0) == 660.0
