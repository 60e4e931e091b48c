import heapq
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.returns import (
    MAX_WAIT_S,
    MIN_WAIT_S,
    RETURN_SHARE,
    earliest_return_s,
    next_wait_s,
)

waits_s = st.floats(MIN_WAIT_S, MAX_WAIT_S)
counts = st.integers(0, 10_000)


@given(waits_s, counts, counts, st.integers(1, 1000))
def test_each_replica_finds_the_wait_of_the_fleet(wait_s, answered, refused, replicas):
    fleet_s = next_wait_s(wait_s, replicas * answered, replicas * refused, 1.0)
    assert next_wait_s(wait_s, answered, refused, 1.0) == pytest.approx(fleet_s)
    assert MIN_WAIT_S <= fleet_s <= MAX_WAIT_S
    more_s = next_wait_s(wait_s, answered, refused + 1, 1.0)
    assert more_s >= next_wait_s(wait_s, answered, refused, 1.0)


@given(waits_s, st.floats(0.01, 300))
def test_the_line_is_gone_when_its_last_client_has_returned(wait_s, passed_s):
    assert next_wait_s(wait_s, 10, 0, passed_s) == max(MIN_WAIT_S, wait_s - passed_s)


@given(st.floats(0.1, 20.0))
def test_returns_stay_in_proportion_to_answers_however_great_the_overload(refused):
    """Each second answers one request and refuses `refused`."""
    returns, wait_s = np.zeros(2000), MIN_WAIT_S
    for second in range(1500):
        wait_s = next_wait_s(wait_s, 1.0, refused, 1.0)
        if wait_s == MAX_WAIT_S:
            break
        first_s = earliest_return_s(wait_s)
        returns[second + first_s : second + 2 * first_s] += refused / first_s
    ten_seconds = np.convolve(returns, np.full(10, 0.1))
    assert ten_seconds.max() <= 2.2 * RETURN_SHARE


@dataclass
class Run:
    """The counts of a service in each second."""

    answered: np.ndarray
    refused: np.ndarray


CAPACITY_PER_S, OVERLOAD_S, TOTAL_S = 100.0, 30, 400
#: Of an answer's time: what a refusal takes. And for how long a request may wait.
REFUSAL_COST, ROOM_S = 0.05, 0.1


def simulate(clients, total_s=TOTAL_S):
    """Three times the capacity for half a minute, then six tenths of it, on virtual time."""
    random = np.random.default_rng(7)
    rates = np.where(np.arange(total_s) < OVERLOAD_S, 3.0, 0.6) * CAPACITY_PER_S
    events = [
        second + offset
        for second, count in enumerate(random.poisson(rates))
        for offset in random.random(count)
    ]
    heapq.heapify(events)
    run = Run(np.zeros(total_s), np.zeros(total_s))
    busy_until_s, wait_s, seen = 0.0, MIN_WAIT_S, 0
    while events and events[0] < total_s:
        now_s = heapq.heappop(events)
        second = int(now_s)
        for ended in range(seen, second):
            wait_s = next_wait_s(wait_s, run.answered[ended], run.refused[ended], 1.0)
        seen = second
        if busy_until_s <= now_s + ROOM_S:
            busy_until_s = max(busy_until_s, now_s) + 1 / CAPACITY_PER_S
            run.answered[second] += 1
            continue
        busy_until_s += REFUSAL_COST / CAPACITY_PER_S
        run.refused[second] += 1
        if clients == "return when told":
            first_s = earliest_return_s(wait_s)
            heapq.heappush(events, now_s + first_s + random.integers(first_s))
        elif clients == "return after a second":
            heapq.heappush(events, now_s + 1.0)
    return run


def test_clients_that_return_when_told_to_are_answered_and_make_no_second_wave():
    leave, told = simulate("leave"), simulate("return when told")
    at_once = simulate("return after a second", total_s=80)
    during, after = slice(0, OVERLOAD_S), slice(OVERLOAD_S + 1, TOTAL_S)
    assert told.answered[during].sum() >= 0.95 * leave.answered[during].sum()
    assert at_once.answered[during].sum() < 0.7 * leave.answered[during].sum()
    # Of those that return when told to, one in a hundred is refused again after the overload.
    assert told.refused[after].sum() <= 0.01 * told.answered[after].sum()
    assert at_once.refused[after].sum() > at_once.answered[after].sum()
    everyone = leave.answered.sum() + leave.refused.sum()
    assert told.answered.sum() >= 0.99 * everyone
