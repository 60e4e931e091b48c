"""Requests that get no outputs: their errors, and how they are counted.

They are refused before or after they are parsed, or admitted and given up: for their deadline, for
want of room after their batch failed, or because the device is lost.
"""

import math
from collections.abc import Sequence

from deployments.batcher.queued_request import queued
from deployments.batcher.row_counts import RowCounts
from deployments.errors import BusyError, CrowdedOutError, DeadlineError, DeviceError, RequestError
from policy.batcher.core import BatcherCore
from policy.batcher.requests import Refusal, Request

FULL = "this replica is full; try again later"
TOO_LATE = "the request cannot be answered within the SLA's response time"


def rejection_of(refusal: Refusal) -> RequestError:
    """Return the error of a request that is rejected by its arrival time alone."""
    return DeadlineError(TOO_LATE) if refusal is Refusal.EXPIRED else BusyError(FULL)


class RejectionHandler:
    """Answers and counts the requests that get no outputs.

    With a `lost_reason`, the device is lost: all that come are answered with a `DeviceError`.
    """

    def __init__(self, core: BatcherCore, rows: RowCounts) -> None:
        self._core = core
        self._rows = rows
        self.lost_reason: str | None = None

    def refused(self, refusal: Refusal, rows: int) -> RequestError:
        """Count a request that the core refused, and return the error for its sender."""
        if self.lost_reason is not None:
            self._rows.refused += rows
            return DeviceError(self.lost_reason)
        self._rows.rejected(refusal, rows)
        if refusal is Refusal.HOPELESS:
            return DeadlineError("the request's deadline is shorter than its own processing time")
        if refusal is Refusal.DEADLINE:
            return BusyError("this replica cannot answer before the request's deadline", "deadline")
        return rejection_of(refusal)

    def rejected(
        self, refusal: Refusal, requests: Sequence[tuple[float, int]], now_s: float
    ) -> None:
        """Count requests that were rejected unparsed, by their arrival times and rows."""
        total = sum([rows for _, rows in requests])
        self._rows.offered += total
        self._core.count_refused(refusal, total, now_s)
        self._rows.rejected(refusal, total)

    def too_late(self, request: Request, message: str | None = None) -> None:
        """Answer `request` with a `DeadlineError`: its deadline passed or cannot be met.

        The status is 504, and not the 503 of a refusal: HAProxy would try another replica, too
        late.
        """
        one = queued(request)
        if one.done:
            return
        self._core.cancel(request)
        self._rows.dropped(request)
        if request.deadline_s < math.inf:
            message = message or "the request's deadline cannot be met"
        one.finish(DeadlineError(message or TOO_LATE))

    def given_up(self, request: Request, now_s: float) -> None:
        """Answer a request for which no time is left here: another replica may have time."""
        if self._core.refusal(request.rows, now_s, request.arrival_s) is Refusal.EXPIRED:
            self.too_late(request)
        else:
            no_time = "this replica has no time left for the request; try again later"
            self._refuse(request, BusyError(no_time, "deadline"))

    def crowded_out(self, request: Request) -> None:
        no_room = "the batch failed and the retry queue is full; try again later"
        self._refuse(request, CrowdedOutError(no_room))

    def _refuse(self, request: Request, error: RequestError) -> None:
        one = queued(request)
        if not one.done:
            self._rows.refused += request.rows
            one.finish(error)

    def lost(self, request: Request, error: RequestError, now_s: float) -> None:
        """Answer a request that was lost with its device.

        If no time is left, no other replica gets it, which it might only hang as well.
        """
        if isinstance(error, DeviceError) and self._core.is_expired(request, now_s):
            self.too_late(request)
        else:
            queued(request).finish(error)
