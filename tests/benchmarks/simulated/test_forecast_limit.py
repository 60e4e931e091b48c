import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulated.forecast_limit import (
    Point,
    ReplayedDay,
    auto_demands,
    cost_at,
    limits,
    pair_demands,
)
from simulator.start_time import StartTime

POINTS = st.lists(st.builds(Point, st.floats(0, 1), st.floats(1, 4)), min_size=1, max_size=8)


def day_of(counts, failed=0.0, spread=0.0):
    return ReplayedDay(np.asarray(counts, float), 100.0, 106.0, StartTime(60.0, spread), failed)


def test_a_fleet_that_is_ordered_serves_a_start_time_later():
    counts = np.full(600, 150.0)
    demand = np.full(60, 150.0)
    demand[20:] = 350.0
    ordered, ready = day_of(counts).fleet(demand, seed=1)
    assert (ordered[:210] == 2).all()
    assert (ordered[210:] == 4).all()
    assert (ready[:270] == 2).all()
    assert (ready[270:] == 4).all()


def test_what_is_given_up_while_it_starts_never_serves():
    demand = np.full(60, 150.0)
    demand[20:22] = 350.0
    ordered, ready = day_of(np.full(600, 150.0)).fleet(demand, seed=1)
    assert ordered.max() == 4
    assert (ready == 2).all()


@settings(max_examples=20, derandomize=True, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 0.5), st.floats(0, 0.5))
def test_in_the_end_all_that_is_ordered_serves(seed, failed, spread):
    random = np.random.default_rng(seed)
    demand = np.append(random.uniform(0, 900, 60), np.full(300, 450.0))
    ordered, ready = day_of(np.full(3600, 50.0), failed, spread).fleet(demand, seed)
    assert (ready >= 0).all()
    assert (ready <= np.maximum.accumulate(ordered)).all()
    assert ready[-1] == ordered[-1]


def test_the_minutes_in_which_too_much_is_late_are_missed():
    counts = np.full(600, 200.0)
    counts[300:360] = 225.0  # two replicas serve 212: 5% is late
    counts[480:540] = 213.0  # half a percent is late
    assert day_of(counts).judge(np.full(60, 200.0)).held == pytest.approx(9 / 10)


@given(POINTS)
def test_the_cost_of_a_curve_is_between_the_points_around_the_share(points):
    cost = cost_at(points)
    enough = [point.cost for point in points if point.held >= 0.99]
    if not enough:
        assert math.isnan(cost)
        return
    assert cost <= min(enough)
    cheaper = [point for point in points if point.cost < min(enough)]
    assert cost >= max((max(cheaper, key=lambda one: one.held).cost,) if cheaper else (1.0,)) - 1e-9


def test_a_steady_load_costs_no_rule_much_more_than_the_oracle():
    counts = np.random.default_rng(3).poisson(250.0, 3600).astype(float)
    assert day_of(counts).judge(auto_demands(counts, 60, 0.02)).held > 0.98
    demands = pair_demands(counts, 60)
    assert day_of(counts).judge(demands["last", None, 1.05]).held > 0.98
    assert (demands["last", 0.05, 1.2] >= demands["last", 0.4, 1.2]).all()


@pytest.mark.slow
def test_perfect_knowledge_is_the_cheapest_and_the_same_day_teaches_more_than_another():
    """Jumps at random: only who knows the day knows them."""
    days = {}
    for number in (1, 2):
        random = np.random.default_rng(number)
        level = np.full(7200, 400.0)
        for begin in random.choice(np.arange(1200, 7000, 400), 4, replace=False):
            level[begin : begin + 120] = 1500.0
        days[number] = day_of(random.poisson(level))
    found = {rule: costs["one setting"] for rule, costs in limits(days, 60, quick=True).items()}
    others = [cost for rule, cost in found.items() if rule != "perfect"]
    assert found["perfect"] < np.nanmin(others)
    assert found["learned, same day"] < np.nan_to_num(found["learned"], nan=math.inf)
