"""Rows by what became of them, and by when they arrived."""

import math

import numpy as np
import pytest

from deployments.batcher.row_counts import ArrivalCounts, RowCounts
from policy.batcher.requests import Refusal, Request


def test_counts_are_those_of_a_histogram_from_the_second_window_on() -> None:
    times_s = np.sort(np.random.default_rng(1).uniform(100.03, 104.0, 300))
    counts, taken = ArrivalCounts(0.25), []
    for number, time_s in enumerate(times_s.tolist()):
        counts.count(time_s, rows=2)
        if number % 70 == 0:
            taken += counts.take(time_s)
    taken += counts.take(104.1)
    expected = 2 * np.histogram(times_s, np.arange(100.25, 104.1, 0.25))[0]
    assert taken == expected.tolist()


def test_windows_without_arrivals_count_0() -> None:
    counts = ArrivalCounts(0.5)
    assert counts.take(3.0) == []
    counts.count(3.4)
    counts.count(3.6)
    assert counts.take(4.9) == [1, 0]
    assert counts.take(4.95) == []
    counts.count(6.1)
    assert counts.take(6.6) == [0, 0, 0, 1]


def test_a_late_timestamp_counts_in_the_current_window() -> None:
    counts = ArrivalCounts(1.0)
    for time_s in (0.5, 1.2, 2.1, 1.9):
        counts.count(time_s)
    assert counts.take(3.0) == [1, 2]


@pytest.mark.parametrize(
    ("refusal", "refused", "deadline_missed", "expired"),
    [
        (Refusal.FULL, 3, 0, 0),
        (Refusal.DEADLINE, 3, 0, 0),
        (Refusal.HOPELESS, 0, 3, 0),
        (Refusal.EXPIRED, 0, 0, 3),
    ],
)
def test_rows_that_another_replica_may_take_are_refused_and_the_others_too_late(
    refusal: Refusal, refused: int, deadline_missed: int, expired: int
) -> None:
    counts = RowCounts()
    counts.rejected(refusal, 3)
    assert (counts.refused, counts.deadline_missed, counts.expired) == (
        refused,
        deadline_missed,
        expired,
    )
    assert counts.refused_too_late == 3 - refused
    assert counts.pruned == 0


@pytest.mark.parametrize("deadline_s", [1.0, math.inf])
def test_dropped_rows_missed_their_own_deadline_or_the_slas(deadline_s: float) -> None:
    counts = RowCounts()
    counts.dropped(Request(0.0, 2, deadline_s=deadline_s))
    own = deadline_s < math.inf
    assert (counts.deadline_missed, counts.expired) == ((2, 0) if own else (0, 2))
    assert (counts.pruned, counts.refused_too_late) == (2, 0)
