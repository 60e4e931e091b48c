"""A service's part in each request: let in or refused, queued for the batcher, and counted."""

import math
from collections.abc import Callable, Sequence

from deployments.batcher.asyncio_batcher import Batcher
from deployments.batcher.event_loop_meter import EventLoopMeter
from deployments.batcher.queued_request import Outcome
from deployments.errors import DeviceError, RequestError
from deployments.http.inference_protocol import InferenceRequest
from deployments.http.service import Service
from deployments.http.signature import Signature
from deployments.observability.request_info import RequestInfo
from deployments.serving.request_counts import RequestCounts
from policy.batcher.requests import Refusal


class BatchedService(Service):
    """A service that answers requests by a batcher; its subclass makes that, and controls it.

    Until a configuration is in force (`configured`), it has no batcher.
    """

    batcher: Batcher
    counts: RequestCounts
    event_loop_meter: EventLoopMeter
    signature: Signature

    def __init__(self, name: str, version: str) -> None:
        super().__init__(name, version)
        self.configured = False
        self._max_timeout_ms = math.inf

    def admit(self, arrival_s: float, now_s: float, priority: int = 0) -> Refusal | None:
        """Return why one more row cannot be answered in time; None if it can.

        Raises
        ------
        DeviceError
            The device is lost. The request is counted.
        """
        # Answers leave at the end of the loop's iteration, when all that is there has been read.
        event_loop_s = self.event_loop_meter.time_left_s(now_s)
        steps = max(0, self.signature.priorities.steps(priority))
        if self.batcher.make_room(1, now_s + event_loop_s, arrival_s, steps):
            return None
        if self.batcher.lost_reason is not None:
            self.counts.rejected(Refusal.FULL, [(arrival_s, 1)], now_s)
            raise DeviceError(self.batcher.lost_reason)
        return self.batcher.core.refusal(1, now_s, arrival_s)

    def count_rejected(
        self, refusal: Refusal, requests: Sequence[tuple[float, int]], now_s: float
    ) -> None:
        """Count requests that were rejected unparsed, given their arrival times and rows."""
        self.counts.rejected(refusal, requests, now_s)

    @property
    def concurrency(self) -> int | None:
        """Requests that the balancer should send at a time; None: as many as come."""
        return self.batcher.core.limits.concurrency if self.configured else None

    def count_answered(self, rows: int, arrival_s: float) -> None:
        self.counts.answered(rows, arrival_s)

    def infer_nowait(
        self,
        request: InferenceRequest,
        arrival_s: float,
        on_done: Callable[[Outcome], None],
        info: RequestInfo | None = None,
    ) -> InferenceRequest:
        """Answer a checked request, as `Service.infer_nowait` does."""
        deadline_ms = request.deadline_ms
        deadline_ms = math.inf if deadline_ms is None else min(deadline_ms, self._max_timeout_ms)
        request.begin(arrival_s, on_done, arrival_s + 1e-3 * deadline_ms, self.counts)
        if info is not None:
            request.trace, request.request_id = info.trace, info.request_id
        try:
            self.batcher.submit(request)
        except RequestError as error:
            self.counts.failed(error, request.rows, arrival_s, deadline_ms)
            raise
        return request
