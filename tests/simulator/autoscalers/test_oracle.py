import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.errors import InvalidInputError
from simulator.autoscalers.fixed import fixed_at_peak
from simulator.autoscalers.oracle import (
    Clairvoyant,
    by_second,
    clairvoyant_schedule,
    need_by_second,
    need_by_window,
)
from tests.support.fleet_views import view

needs = st.lists(st.integers(0, 3), min_size=1, max_size=6)
long_needs = st.lists(st.integers(0, 30), min_size=1, max_size=80)
start_times = st.integers(0, 5)


def serving(ordered: np.ndarray, start_time_s: int) -> np.ndarray:
    """Replicas that serve in each second, when the newest are the first to go."""
    births: list[int] = []
    served = []
    for second, count in enumerate(ordered):
        del births[count:]
        births += [second if second else -start_time_s] * (count - len(births))
        served.append(sum(second - birth >= start_time_s for birth in births))
    return np.array(served)


def cheapest_by_trying_all(need: list[int], start_time_s: int) -> int:
    """Every schedule of so few seconds, each obeyed second by second."""
    return min(
        sum(ordered)
        for ordered in itertools.product(range(max(need) + 2), repeat=len(need))
        if np.all(serving(np.array(ordered), start_time_s) >= need)
    )


@settings(max_examples=40)
@given(need=needs, start_time_s=st.integers(0, 3))
def test_no_schedule_at_all_is_cheaper(need, start_time_s) -> None:
    cost = clairvoyant_schedule(need, start_time_s).sum()
    assert cost == cheapest_by_trying_all(need, start_time_s)


@given(need=long_needs, start_time_s=start_times)
def test_what_is_needed_serves_in_time(need, start_time_s) -> None:
    ordered = clairvoyant_schedule(need, start_time_s)
    assert np.all(serving(ordered, start_time_s) >= need)


@given(need=long_needs, start_time_s=start_times)
def test_costs_lie_between_the_instant_bound_and_static_at_peak(need, start_time_s) -> None:
    instant = Clairvoyant(need, 0).replica_seconds
    aware = Clairvoyant(need, start_time_s).replica_seconds
    assert sum(need) == instant <= aware <= max(need) * len(need)
    assert aware <= Clairvoyant(need, start_time_s + 1).replica_seconds


@given(need=long_needs, start_time_s=start_times)
def test_cost_is_that_of_its_levels_alone(need, start_time_s) -> None:
    """Summed gap by gap, without a schedule: the closed gaps, the starts, what is needed."""
    needed = np.array(need)
    cost = 0
    for level in range(1, max(need) + 1):
        seconds = np.flatnonzero(needed >= level)
        gaps = np.diff(np.concatenate(([-1], seconds))) - 1
        cost += seconds.size + int(np.minimum(gaps, start_time_s).sum())
    assert Clairvoyant(need, start_time_s).replica_seconds == cost


def test_keeps_over_a_short_gap_and_starts_anew_after_a_long_one() -> None:
    need = [1] * 5 + [2] * 3 + [1] * 4 + [2] * 3 + [1] * 9 + [2] * 2
    kept = clairvoyant_schedule(need, 4)
    assert kept.tolist() == [1] + [2] * 14 + [1] * 5 + [2] * 6
    assert kept.sum() == sum(need) + 4 + 4 + 4


def test_obeys_its_schedule_and_stays_at_its_end() -> None:
    oracle = Clairvoyant([1, 1, 1, 3], 2)
    assert oracle.initial_replicas == 1
    assert [oracle.replicas(view(second)) for second in (1, 2, 3, 4)] == [3, 3, 3, 3]


def test_need_by_second_covers_each_second() -> None:
    assert need_by_second([0, 99, 100, 101, 1000], 100).tolist() == [1, 1, 1, 2, 10]
    assert need_by_second([0.0], 100, min_replicas=0).tolist() == [0]
    with pytest.raises(InvalidInputError):
        need_by_second([1.0], 0)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=12),
)
def test_need_by_window_finds_the_least_of_every_window(bounds) -> None:
    wanted = np.array([least for least, _ in bounds])
    low = np.array([max(0, least - room) for least, room in bounds])
    high = np.array([least + room for least, room in bounds])
    found = need_by_window(lambda replicas: replicas >= wanted, low, high)
    assert found.tolist() == wanted.tolist()


def test_need_by_window_keeps_the_bound_where_nothing_complies() -> None:
    found = need_by_window(lambda replicas: np.zeros(2, dtype=bool), [1, 1], [4, 9])
    assert found.tolist() == [4, 9]


def test_need_by_window_raises_what_fails_for_its_neighbours_queue() -> None:
    """Alone each window does with 2; after a neighbour at 2 the second needs 3."""

    def complies(replicas: np.ndarray) -> np.ndarray:
        return np.array([replicas[0] >= 2, replicas[1] >= (3 if replicas[0] <= 2 else 2)])

    assert need_by_window(complies, [1, 1], [6, 6]).tolist() == [2, 3]


def test_windows_repeat_for_their_seconds() -> None:
    assert by_second([2, 5], 70).tolist() == 60 * [2] + 10 * [5]


def test_a_static_fleet_at_peak_costs_no_less_than_the_oracle() -> None:
    rng = np.random.default_rng(5)
    offered = rng.poisson(1000 + 800 * np.sin(np.arange(2000) / 300))
    need = need_by_second(offered, 130)
    static = fixed_at_peak(offered, 130)
    assert static.count == need.max()
    assert Clairvoyant(need, 60).replica_seconds < static.count * need.size
