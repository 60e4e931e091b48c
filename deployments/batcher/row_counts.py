"""The counts of the rows that reached a batcher, by outcome."""

import math
from dataclasses import dataclass

from policy.batcher.requests import Refusal, Request


@dataclass(slots=True)
class RowCounts:
    """Counts of rows, by what became of them.

    Of the `offered` rows, some were `refused` or crowded out, `completed`, dropped because their
    request's own deadline (`deadline_missed`) or the SLA's (`expired`) passed or could not be met,
    or `cancelled`: given up, for instance because their clients left. Of those dropped, `pruned`
    ones had waited in the queue, and `refused_too_late` ones were never let in.
    """

    offered: int = 0
    refused: int = 0
    completed: int = 0
    deadline_missed: int = 0
    expired: int = 0
    pruned: int = 0
    refused_too_late: int = 0
    cancelled: int = 0

    def rejected(self, refusal: Refusal, rows: int) -> None:
        """Count rows that were never let in.

        Where no other replica could answer them in time, they are no sign of too few replicas, and
        do not count as refused.
        """
        if refusal is Refusal.HOPELESS:
            self.deadline_missed += rows
            self.refused_too_late += rows
        elif refusal is Refusal.EXPIRED:
            self.expired += rows
            self.refused_too_late += rows
        else:
            self.refused += rows

    def dropped(self, request: Request) -> None:
        """Count the rows of a request that was let in, and will not be answered in time."""
        self.pruned += request.rows
        if request.deadline_s < math.inf:
            self.deadline_missed += request.rows
        else:
            self.expired += request.rows
