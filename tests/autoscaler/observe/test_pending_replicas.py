import math

import pytest

from autoscaler.decision import FleetState
from autoscaler.observe.offered_load import OfferedLoad
from autoscaler.observe.pending_replicas import PendingReplicas, ScaleFromZero

START_TIME_S = 10.0


def observed(ready_by_second, ordered=5):
    """Return what counts as late after each second."""
    orders, counts = PendingReplicas(), []
    for second, ready in enumerate(ready_by_second):
        orders.observe(float(second), ordered, ready)
        counts.append(orders.late(float(second), START_TIME_S))
    return counts


def test_replicas_that_do_not_start_for_two_starts_and_half_a_minute_are_late():
    assert observed([3] * 60) == 50 * [0] + 10 * [2]


def test_each_replica_that_starts_gives_the_others_time_again():
    counts = observed([3] * 45 + [4] * 60)
    assert counts == 95 * [0] + 10 * [1]


def test_an_order_is_not_late_because_an_older_one_is():
    """One replica stuck for a minute, and five ordered now: six were said to be stuck at once."""
    orders = PendingReplicas()
    counts = []
    for second in range(130):
        orders.observe(float(second), 5 if second < 60 else 10, 4)
        counts.append(orders.late(float(second), START_TIME_S))
    assert counts == 50 * [0] + 60 * [1] + 20 * [6]


def zero(waiting):
    return FleetState(0, 0, 10, 0, waiting)


def test_waiting_requests_count_as_a_rate_however_long_the_first_replica_takes():
    first, load = ScaleFromZero(), OfferedLoad()
    rates = []
    for second in range(1, 200):
        first.observe(float(second), zero(waiting=20.0 * second), load)
        rates.append(first.rate_per_s(float(second), 20.0 * second))
    assert rates[-1] == pytest.approx(20.0, rel=0.02)
    first.observe(200.0, zero(waiting=0.0), load)
    assert first.rate_per_s(200.0, 0.0) is None


def test_a_fleet_is_not_idle_while_a_first_replica_starts():
    first, load = ScaleFromZero(), OfferedLoad()
    assert first.idle_s(0.0, load) == math.inf
    first.observe(100.0, FleetState(1, 0, 10, ready_replicas=0), load)
    assert first.idle_s(160.0, load) == 60.0
    first.observe(160.0, FleetState(1, 0, 10, ready_replicas=1), load)
    assert first.idle_s(160.0, load) == 60.0
