"""The counts of a service's requests: answered, refused, too late, and given up."""

import math
import time
from collections.abc import Sequence

from deployments.batcher.asyncio_batcher import Batcher
from deployments.batcher.event_loop_meter import EventLoopMeter
from deployments.control.observations import ReplicaObserver
from deployments.errors import DeadlineError, ModelError, RequestError
from policy.batcher.requests import Refusal


class RequestCounts:
    """Counts each request where its outcome matters: for the SLA, the load, or the event loop.

    Rows that the balancer refused never came here. More replicas would not help the rows that the
    model failed on, so they are not late.
    """

    def __init__(
        self, batcher: Batcher, observer: ReplicaObserver, event_loop_meter: EventLoopMeter
    ) -> None:
        self.rows_refused_by_balancer = self.rows_failed = 0
        #: Rows that came, and requests of all kinds, at the last call of `refused_by_balancer`.
        self._came_before = self._read_before = 0
        self._rows_per_request = 1.0
        self._rows = batcher.rows
        self._rejections = batcher.rejections
        self._observer = observer
        self._event_loop_meter = event_loop_meter

    def rejected(
        self, refusal: Refusal, requests: Sequence[tuple[float, int]], now_s: float
    ) -> None:
        """Count requests that were rejected unparsed, given their arrival times and rows."""
        self._event_loop_meter.requests_refused(len(requests))
        self._rejections.rejected(refusal, requests, now_s)
        if refusal is Refusal.FULL:
            after_s = sum([now_s - arrival_s for arrival_s, _ in requests])
            self._observer.refused_unread(len(requests), after_s)
        else:
            for arrival_s, rows in requests:
                self._observer.deadline_missed(rows, now_s - arrival_s, math.inf)

    def refused_by_balancer(self, requests: int) -> None:
        """Count requests that HAProxy refused, with the mean rows of the recent requests.

        Denied requests, such as those without a token, have no rows. HAProxy cannot recognize them,
        so the mean includes the denied ones among the recent requests.
        """
        counted, read = self._rows, self._event_loop_meter.requests
        came = counted.offered - self.rows_refused_by_balancer
        new_rows, new_requests = came - self._came_before, read - self._read_before
        self._came_before, self._read_before = came, read
        if new_requests:
            self._rows_per_request = new_rows / new_requests
        rows = round(requests * self._rows_per_request)
        self.rows_refused_by_balancer += rows
        counted.offered += rows
        counted.refused += rows

    def failed(
        self, error: RequestError, rows: int, arrival_s: float, deadline_ms: float = math.inf
    ) -> None:
        if isinstance(error, ModelError):
            self.rows_failed += rows
        if isinstance(error, DeadlineError):
            self._observer.deadline_missed(rows, time.monotonic() - arrival_s, deadline_ms)

    def answered(self, rows: int, arrival_s: float) -> None:
        self._observer.answered(rows, time.monotonic() - arrival_s)

    def client_left(self, rows: int, arrival_s: float) -> None:
        self._observer.client_left(rows, time.monotonic() - arrival_s)
