"""A service's part in each request: let in or refused, queued for the batcher, and counted."""

import math
from collections.abc import Callable, Sequence

from deployments.batcher.asyncio_batcher import Batcher
from deployments.batcher.event_loop_meter import EventLoopMeter
from deployments.batcher.submission import Outcome, outputs_of
from deployments.errors import RequestError
from deployments.http.base_service import BaseService
from deployments.http.inference_protocol import InferenceRequest
from deployments.http.json_guard import claimed_rows
from deployments.http.signature import Signature, Tensors
from deployments.observability.request_info import RequestInfo
from deployments.serving.inference_call import InferenceCall
from deployments.serving.request_counts import RequestCounts
from policy.batcher.requests import Refusal


class BatchedService(BaseService):
    """A service that answers requests by a batcher; its subclass makes that, and controls it.

    Parameters
    ----------
    name, version : str
        The model's, in paths and answers.

    Attributes
    ----------
    configured : bool
        Whether a configuration is in force, and so the attributes below are there.
    batcher : Batcher
        Queues and computes the requests.
    counts : RequestCounts
        Counts them.
    event_loop_meter : EventLoopMeter
        The meter of the event loop.
    signature : Signature
        What requests may say.
    """

    batcher: Batcher
    counts: RequestCounts
    event_loop_meter: EventLoopMeter
    signature: Signature

    def __init__(self, name: str, version: str) -> None:
        super().__init__(name, version)
        self.configured = False
        self._max_timeout_ms = math.inf

    def turns_away(self, arrival_s: float, now_s: float, priority: int = 0) -> Refusal | None:
        """Return why one more row cannot be answered in time, without counting it.

        Raises
        ------
        DeviceError
            The device is lost. The request is counted.
        """
        # Answers leave at the end of the loop's iteration, when all that is there has been read.
        front_s = self.event_loop_meter.time_left_s(now_s)
        steps = max(0, self.signature.priorities.steps(priority))
        if self.batcher.make_room(1, now_s + front_s, arrival_s, steps):
            return None
        if self.batcher.lost_reason is not None:
            self.refuse(b"", arrival_s)
        return self.batcher.core.refusal(1, now_s, arrival_s)

    def count_turned_away(
        self, refusal: Refusal, requests: Sequence[tuple[float, int]], now_s: float
    ) -> None:
        """Count requests that were turned away, given their arrival times and rows."""
        self.counts.turned_away(refusal, requests, now_s)

    @property
    def concurrency(self) -> int | None:
        """Requests that the balancer should send at a time; None: as many as come."""
        return self.batcher.core.limits.concurrency if self.configured else None

    def count_answered(self, rows: int, arrival_s: float) -> None:
        """Count a request whose outputs are encoded."""
        self.counts.answered(rows, arrival_s)

    def refuse(self, body: bytes, arrival_s: float) -> None:
        """Count the rows of a request that is refused before it is parsed.

        Raises
        ------
        DeviceError
            The device is lost.
        DeadlineError
            The request waited so long before it was read that no replica can answer it in time.
        """
        self.counts.refused_unread(claimed_rows(body, self.signature.max_rows), arrival_s)

    async def infer(
        self, request: InferenceRequest, arrival_s: float, info: RequestInfo | None = None
    ) -> Tensors:
        """Answer a checked request; cancelling the call gives it up.

        Parameters and errors are those of `infer_nowait` and of its outcome.
        """
        return await outputs_of(
            lambda on_done: self.infer_nowait(request, arrival_s, on_done, info)
        )

    def infer_nowait(
        self,
        request: InferenceRequest,
        arrival_s: float,
        on_done: Callable[[Outcome], None],
        info: RequestInfo | None = None,
    ) -> InferenceCall:
        """Have a checked request answered.

        Parameters
        ----------
        request : InferenceRequest
        arrival_s : float
            When it reached this process, by `time.monotonic`. Its deadline counts from here.
        on_done : callable
            Called once on the event loop, after this call has returned, with the outcome: the
            model's outputs, each of shape ``(rows, ...)``, or a `RequestError`. It is not called if
            the request is cancelled.
        info : RequestInfo, optional
            Its id, and what takes the times of its batches.

        Returns
        -------
        InferenceCall
            Its `cancel` gives the request up.

        Raises
        ------
        RequestError
            The request is refused at once, as in `Batcher.submit_nowait`.
        """
        deadline_ms = request.deadline_ms
        deadline_ms = math.inf if deadline_ms is None else min(deadline_ms, self._max_timeout_ms)
        call = InferenceCall(self.counts, request.rows, arrival_s, deadline_ms, on_done)
        try:
            call.submission = self.batcher.submit_nowait(
                request.inputs,
                request.rows,
                arrival_s,
                call.finish,
                arrival_s + 1e-3 * deadline_ms,
                request.priority,
            )
        except RequestError as error:
            self.counts.failed(error, request.rows, arrival_s, deadline_ms)
            raise
        if info is not None:
            call.submission.trace, call.submission.request_id = info.trace, info.request_id
        return call
