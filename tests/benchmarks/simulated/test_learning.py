import numpy as np
import pytest

from autoscaler.history.traces import Trace
from benchmarks.simulated.learning import SLA_RATE_PER_S, by_day, replay

START_S = 60


@pytest.mark.slow
def test_a_steady_load_is_held_at_little_more_than_the_oracle():
    offered = np.full(7200, 3.5 * SLA_RATE_PER_S)
    ordered, risks = replay(offered, START_S, 0.99, None)
    (day,) = by_day(offered, START_S, ordered, risks)
    assert day.compliant == 1
    assert day.over_oracle < 1.3
    assert day.risk > 0.01


def test_a_jump_that_nothing_announced_is_missed_until_replicas_have_started():
    offered = np.full(7200, 2.0 * SLA_RATE_PER_S)
    offered[6600:] *= 4
    ordered, risks = replay(offered, START_S, 0.99, 0.02)
    (day,) = by_day(offered, START_S, ordered, risks)
    # Ten seconds until it is seen, and sixty for the start: two windows of 120.
    assert day.compliant == pytest.approx(1 - 2 / 120)
    assert (risks[10:] == 0.02).all()


def test_a_day_without_misses_costs_as_much_as_the_oracle_if_it_orders_the_same():
    offered = np.full(3600, 2.0 * SLA_RATE_PER_S)
    (day,) = by_day(offered, START_S, np.full(3600, 2.0), np.zeros(3600))
    assert (day.compliant, day.over_oracle) == (1.0, 1.0)


@pytest.mark.slow
def test_jumps_that_a_history_knows_are_not_missed():
    """A jump every half hour: ten before the service begins, and two after it."""
    times = np.arange(-5 * 3600, 3600)
    load = np.where(times % 1800 >= 1500, 8.0, 2.0) * SLA_RATE_PER_S
    before, offered = load[:-3600], load[-3600:]
    history = Trace(before, 1, -before.size, False)
    held = {}
    for name, past in (("none", None), ("history", history)):
        ordered, risks = replay(offered, START_S, 0.99, 0.02, past)
        (day,) = by_day(offered, START_S, ordered, risks)
        held[name] = day.compliant
    assert held["none"] <= 1 - 4 / 60
    assert held["history"] == 1
