"""A service, as the HTTP interface needs it: one model or pipeline behind its batcher."""

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deployments.access.control import AccessControl
from deployments.access.web_pages import is_loopback
from deployments.batcher.event_loop_meter import EventLoopMeter
from deployments.batcher.queued_request import Cancellable, Outcome, outputs_of
from deployments.haproxy.command import HTTP_HOST
from deployments.http.inference_protocol import InferenceRequest, parse_request
from deployments.http.request_body import BodyBudget
from deployments.http.signature import Signature, Tensors
from deployments.observability.inference_statistics import BatchTotals
from deployments.observability.request_info import RequestInfo
from deployments.observability.tracing import Tracing
from policy.batcher.requests import Refusal


class Service(ABC):
    """A service as the HTTP interface uses it, whatever computes the answers.

    Attributes
    ----------
    replica : str or None
        The id of the Ray replica that it is in, the label `replica` of its metrics; the adapter
        sets it.
    config_error : str or None
        Why the latest configuration was rejected; the adapter that reads configurations sets it.
    answers : Counter of (int, str)
        Answers by HTTP status and, of refusals, the reason; the HTTP interface counts them.
    draining : bool
        Whether this replica is about to stop.
    bodies : BodyBudget
        Bounds the memory that the bodies of unanswered requests take.
    platform : str
        As Triton names the backend.
    receive_timeout_s : float
        How long a request may take to arrive.
    earliest_return_s : int or None
        After how many seconds refused clients may return; None: not known.
    event_loop_meter : EventLoopMeter
        Counts requests, and knows since when they could have been read.
    """

    platform: str
    signature: Signature
    max_body_bytes: int
    receive_timeout_s: float = 30.0
    event_loop_meter: EventLoopMeter

    def __init__(self, name: str, version: str) -> None:
        self.model_name = name
        self.model_version = version
        self.replica: str | None = None
        self.config_error: str | None = None
        self.earliest_return_s: int | None = None
        self.answers: Counter[tuple[int, str]] = Counter()
        self.batch_totals = BatchTotals()
        self.draining = False
        self.bodies = BodyBudget()
        self.access = AccessControl()
        self.access.local_only = is_loopback(os.environ.get(HTTP_HOST, ""))
        self.tracing = Tracing(name, version)

    def refusals(self) -> dict[str, int]:
        """Return the number of refused requests by reason, named ``refused_<reason>``."""
        found: Counter[str] = Counter()
        for (_, reason), count in self.answers.items():
            if reason:
                found[f"refused_{reason}"] += count
        return found

    def begin_drain(self) -> None:
        """Report from now on that the service is not ready; requests are still answered."""
        self.draining = True

    @property
    def concurrency(self) -> int | None:
        """Requests that the balancer should send at a time; None: as many as come."""
        return None

    def parse(
        self,
        body: bytes,
        header_length: int | None,
        timeout_ms: float | None,
        priority: int,
        info: RequestInfo,
        arrival_s: float,
    ) -> InferenceRequest:
        """Parse the body of a request, and begin its trace; arguments as for `parse_request`.

        Errors are the same, and a `ForbiddenError` if its token may not claim its priority.
        """
        request = parse_request(body, header_length, self.signature, timeout_ms, priority)
        level = self.signature.priorities.level(request.priority)
        self.access.check_priority(info.token, level)
        if self.tracing.on:
            info.trace = self.tracing.begin(info, arrival_s, request.rows)
        return request

    @abstractmethod
    def admit(self, arrival_s: float, now_s: float, priority: int = 0) -> Refusal | None:
        """Return why one more row is refused before its request is parsed; None if it is not.

        It is not counted: `count_rejected` does that. The request arrived at `arrival_s`, by
        `time.monotonic`. `priority` is as its head gives it, by `PriorityLevels`; 0 if that names
        none. A `RequestError` refuses it for another reason, and the request is counted.
        """

    @abstractmethod
    def count_rejected(
        self, refusal: Refusal, requests: Sequence[tuple[float, int]], now_s: float
    ) -> None:
        """Count requests that were rejected unparsed, given their arrival times and rows."""

    @abstractmethod
    def count_answered(self, rows: int, arrival_s: float) -> None:
        """Count a request whose outputs are encoded: `infer_nowait` does not know of that."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether the model can answer requests."""

    @abstractmethod
    def infer_nowait(
        self,
        request: InferenceRequest,
        arrival_s: float,
        on_done: Callable[[Outcome], None],
        info: RequestInfo | None = None,
    ) -> Cancellable:
        """Answer a checked request; a `RequestError` refuses it at once.

        Its deadline counts from `arrival_s`, when it could first have been read, by
        `time.monotonic`. `on_done` is called once on the event loop, after this call has returned,
        with the model's outputs, each of shape ``(rows, ...)``, or a `RequestError`; not if the
        request is cancelled. `info` has its id, and takes the times of its batches.
        """

    async def infer(
        self, request: InferenceRequest, arrival_s: float, info: RequestInfo | None = None
    ) -> Tensors:
        """Answer a checked request; cancelling the call gives it up.

        Parameters and errors are those of `infer_nowait` and of its outcome.
        """
        return await outputs_of(
            lambda on_done: self.infer_nowait(request, arrival_s, on_done, info)
        )

    @abstractmethod
    def explain(self) -> Mapping[str, Any]:
        """Return the content of ``GET /sojourn/policy``."""

    @abstractmethod
    def example_request(self) -> Mapping[str, Any]:
        """Return a valid request of one row, for ``GET /sojourn/example``."""
