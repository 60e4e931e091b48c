"""The counts of the rows that reached a batcher, by outcome, and when they arrived."""

import math
from dataclasses import dataclass, field

from policy.batcher.requests import Refusal, Request
from policy.burstiness import COUNT_WINDOW_S


class ArrivalCounts:
    """Rows that arrived in each window of a fixed length, O(1) per arrival.

    Windows are aligned to the clock. The window of the first arrival is not reported, because
    counting may have begun within it.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._window: int | None = None
        self._rows = 0
        self._whole = False
        self._ended: list[int] = []

    def count(self, now_s: float, rows: int = 1) -> None:
        self._advance(now_s)
        self._rows += rows

    def take(self, now_s: float) -> list[int]:
        """Return the counts of the windows that ended since the last call, the oldest first."""
        if self._window is not None:
            self._advance(now_s)
        ended, self._ended = self._ended, []
        return ended

    def _advance(self, now_s: float) -> None:
        window = math.floor(now_s / self._window_s)
        if self._window is None:
            self._window = window
        # Requests are timestamped before they are parsed, so they may be slightly out of order.
        elif window > self._window:
            if self._whole:
                self._ended.append(self._rows)
            self._ended.extend([0] * (window - self._window - 1))
            self._window, self._rows, self._whole = window, 0, True


@dataclass(slots=True)
class RowCounts:
    """Counts of rows, by what became of them.

    Of the `offered` rows, some were `refused` or crowded out, `completed`, dropped because their
    request's own deadline (`deadline_missed`) or the SLA's (`expired`) passed or could not be met,
    or `cancelled`: given up, for instance because their clients left. Of those dropped, `pruned`
    ones had waited in the queue, and `refused_too_late` ones were never let in. `arrivals` has the
    offered ones by windows of `policy.burstiness.COUNT_WINDOW_S`.
    """

    offered: int = 0
    refused: int = 0
    completed: int = 0
    deadline_missed: int = 0
    expired: int = 0
    pruned: int = 0
    refused_too_late: int = 0
    cancelled: int = 0
    arrivals: ArrivalCounts = field(default_factory=lambda: ArrivalCounts(COUNT_WINDOW_S))

    def arrived(self, rows: int, arrival_s: float) -> None:
        self.offered += rows
        self.arrivals.count(arrival_s, rows)

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
