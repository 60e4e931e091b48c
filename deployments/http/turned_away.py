"""The requests that one iteration of the event loop refuses as they are read, counted together.

Counting and logging each of them would cost as much as all else that a refusal takes.
"""

import asyncio
import time
from collections.abc import Callable

from deployments.batcher.unserved import TOO_LATE
from deployments.errors import BusyError, DeadlineError, RequestError
from deployments.http.app import FULL, InferenceApp
from deployments.observability.request_info import RequestInfo
from policy.batcher.requests import Refusal

#: What clients are told, by whether their requests came too late for any replica.
ERRORS: tuple[RequestError, RequestError] = (BusyError(FULL), DeadlineError(TOO_LATE))
_REASONS = (Refusal.FULL, Refusal.EXPIRED)


class TurnedAway:
    """Count and log refused requests before the iteration ends, and before they are answered.

    Parameters
    ----------
    app : InferenceApp
    loop : AbstractEventLoop
    """

    def __init__(self, app: InferenceApp, loop: asyncio.AbstractEventLoop) -> None:
        self._app, self._loop = app, loop
        self._scheduled = False
        #: Arrival times and rows, by whether the requests came too late.
        self._requests: tuple[list[tuple[float, int]], ...] = ([], [])
        self._first: list[RequestInfo | None] = [None, None]

    def add(
        self, arrival_s: float, rows: int, info: Callable[[], RequestInfo], *, too_late: bool
    ) -> None:
        """Note a request; its `info` is asked for if a line in the log is to be about it."""
        requests = self._requests[too_late]
        if not requests:
            self._first[too_late] = info()
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._count)
        requests.append((arrival_s, rows))
        # Now, as it is this iteration of the loop that the refusal costs.
        self._app.service.event_loop_meter.request_refused()

    def _count(self) -> None:
        self._scheduled = False
        app, now_s = self._app, time.monotonic()
        for requests, info, error, reason in zip(
            self._requests, self._first, ERRORS, _REASONS, strict=True
        ):
            if not requests:
                continue
            assert info is not None
            arrival_s, count = requests[0][0], len(requests)
            app.service.count_turned_away(reason, requests, now_s)
            app.service.answers[error.status] += count
            app.outcomes.totals.failed(arrival_s, count)
            app.outcomes.log_failure(error.status, str(error), info, arrival_s, likewise=count - 1)
            requests.clear()
