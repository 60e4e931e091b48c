"""Every row is counted once for why it was not answered."""

import math

import pytest

from deployments.batcher.row_counts import RowCounts
from policy.batcher.requests import Refusal, Request


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
