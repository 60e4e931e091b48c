import pytest

from autoscaler.decision import FleetState
from autoscaler.stuck_orders import StuckOrders

START_TIME_S = 10.0


def observed(ready_by_second, ordered=5):
    """Return what counts as stuck after each second."""
    orders, counts = StuckOrders(), []
    for second, ready in enumerate(ready_by_second):
        orders.observe(float(second), FleetState(ordered, 1, 50, ready))
        counts.append(orders.count(float(second), START_TIME_S))
    return counts


def test_replicas_that_do_not_start_for_two_starts_and_half_a_minute_are_stuck():
    assert observed([3] * 60) == 50 * [0] + 10 * [2]


def test_each_replica_that_starts_gives_the_others_time_again():
    counts = observed([3] * 45 + [4] * 60)
    assert counts == 95 * [0] + 10 * [1]


def test_none_is_stuck_once_all_serve():
    assert observed([3] * 60 + [5] * 60)[60:] == 60 * [0]


@pytest.mark.parametrize("ready", [None, 5])
def test_without_a_shortage_none_is_stuck(ready):
    assert not any(observed([ready] * 100))


def test_an_order_is_not_stuck_because_an_older_one_is() -> None:
    """One replica stuck for a minute, and five ordered now: six were said to be stuck at once."""
    orders = StuckOrders()
    counts = []
    for second in range(130):
        orders.observe(float(second), FleetState(5 if second < 60 else 10, 1, 50, 4))
        counts.append(orders.count(float(second), START_TIME_S))
    assert counts == 50 * [0] + 60 * [1] + 20 * [6]
