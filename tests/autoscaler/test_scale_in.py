import json
import math

import pytest

from autoscaler.scale_in import ScaleInGuard, measured_hold_s


def test_the_highest_demand_of_the_hold_counts():
    guard = ScaleInGuard()
    for second, demand in enumerate([5.0, 9.0, 3.0, 7.0, 1.0, 2.0]):
        guard.observe(second, demand, hold_s=3.0)
    assert guard.cautious_demand_per_s(2.0, 0.0, 10.0) == 7.0
    guard.observe(7.0, 1.0, hold_s=3.0)
    assert guard.cautious_demand_per_s(1.0, 0.0, 10.0) == 2.0


def test_noise_of_a_window_must_not_undo_it():
    """400 arrivals in a window deviate by 20, or 5%; four times that is kept as room."""
    guard = ScaleInGuard()
    guard.observe(0.0, 50.0, hold_s=10.0)
    assert guard.cautious_demand_per_s(50.0, 40.0, 10.0) == pytest.approx(
        50 * (1 + 4 / math.sqrt(400))
    )


def test_a_break_begins_the_hold_anew():
    guard = ScaleInGuard()
    guard.observe(100.0, 1.0, hold_s=10.0)
    assert guard.watched_s(130.0) == 30.0
    guard.interrupt()
    assert guard.watched_s(131.0) == 0.0
    guard.observe(140.0, 1.0, hold_s=10.0)
    assert guard.watched_s(145.0) == 5.0


def test_state_goes_through_json():
    guard = ScaleInGuard()
    for second, demand in enumerate([5.0, 9.0, 3.0, 7.0]):
        guard.observe(second, demand, hold_s=60.0)
    heir = ScaleInGuard.from_state(json.loads(json.dumps(guard.state_dict())))
    for one in (guard, heir):
        one.observe(62.0, 1.0, hold_s=60.0)
    assert (
        heir.cautious_demand_per_s(1.0, 0.0, 10.0)
        == guard.cautious_demand_per_s(1.0, 0.0, 10.0)
        == 7.0
    )
    assert heir.watched_s(62.0) == 62.0


def test_no_longer_than_noise_lasts_or_a_start_takes():
    assert measured_hold_s(start_time_s=300.0, window_s=10.0) == 20.0
    assert measured_hold_s(start_time_s=7.0, window_s=10.0) == 7.0
