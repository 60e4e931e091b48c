"""A service, as the HTTP interface needs it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from deployments.access.control import AccessControl
from deployments.batcher.event_loop_meter import EventLoopMeter
from deployments.batcher.submission import Cancellable, Outcome
from deployments.http.body_budget import BodyBudget
from deployments.http.inference_protocol import InferenceRequest
from deployments.http.signature import Signature, Tensors
from deployments.observability.inference_statistics import BatchTotals
from deployments.observability.request_info import RequestInfo
from deployments.observability.tracing import Tracing
from policy.batcher.requests import Refusal


class Service(Protocol):
    """One model behind its batcher, as the app needs it."""

    model_name: str
    model_version: str
    platform: str
    signature: Signature
    max_body_bytes: int
    access: AccessControl
    tracing: Tracing
    bodies: BodyBudget
    receive_timeout_s: float
    answers: Counter[int]
    draining: bool

    @property
    def event_loop_meter(self) -> EventLoopMeter:
        """The meter that counts requests, and tells since when they could have been read."""

    @property
    def concurrency(self) -> int | None:
        """Requests that the balancer should send at a time; None: as many as come."""

    @property
    def ready(self) -> bool:
        """Whether the model can answer requests."""

    @property
    def batch_totals(self) -> BatchTotals:
        """The batches that the model computed."""

    def has_room(self, body: bytes, arrival_s: float, priority: int = 0) -> bool:
        """Return whether one more row can be answered in time. If not, count it as refused."""

    def turns_away(self, arrival_s: float, now_s: float, priority: int = 0) -> Refusal | None:
        """Return why one more row cannot be answered in time, FULL or EXPIRED; None if it can.

        It is not counted; `count_turned_away` does that.
        """

    def count_turned_away(
        self, refusal: Refusal, requests: Sequence[tuple[float, int]], now_s: float
    ) -> None:
        """Count requests that were turned away, given their arrival times and rows."""

    def count_answered(self, rows: int, arrival_s: float) -> None:
        """Count a request whose outputs are encoded, and so answered in time or late."""

    def refuse(self, body: bytes, arrival_s: float) -> None:
        """Count a request that is refused because the bodies of others take too much memory."""

    def infer_nowait(
        self,
        request: InferenceRequest,
        arrival_s: float,
        on_done: Callable[[Outcome], None],
        info: RequestInfo | None = None,
    ) -> Cancellable:
        """Run a checked request, and call `on_done` with its outcome unless it is cancelled."""

    async def infer(
        self, request: InferenceRequest, arrival_s: float, info: RequestInfo | None = None
    ) -> Tensors:
        """Run a checked request. `arrival_s` is when it could first have been read, in seconds."""

    def explain(self) -> Mapping[str, Any]:
        """Return the content of ``GET /sojourn/policy``."""

    def example_request(self) -> Mapping[str, Any]:
        """Return a valid request of one row, for ``GET /sojourn/example``."""
