"""A request in the live batcher: its outputs so far, and its callback."""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from deployments.batcher.crash_journal import digest_of
from deployments.batcher.shapes import Tensors
from deployments.errors import ModelError, RequestError
from deployments.observability.tracing import RequestTrace
from policy.batcher.requests import Request

logger = logging.getLogger("sojourn.batcher")

#: The outcome of a request: its outputs, each of shape ``(rows, ...)``, or why it has none.
Outcome = Tensors | RequestError


class RequestObserver(Protocol):
    def failed(
        self, error: RequestError, rows: int, arrival_s: float, deadline_ms: float = math.inf
    ) -> None:
        """Count a request that is answered with an error."""

    def client_left(self, rows: int, arrival_s: float) -> None:
        """Count a request whose client did not wait for the answer."""


class QueuedRequest(Request):
    """A queued request, its outputs and its callback; its `content` is the model's inputs.

    `on_cancel` is called when its sender gives it up. A `trace` takes the times of its batches.
    """

    __slots__ = (
        *("_digest", "_observer", "_on_done", "_parts", "_rows_done"),
        *("deadline_timer", "on_cancel", "trace"),
    )

    def __init__(self, inputs: Tensors, rows: int, priority: int = 0) -> None:
        Request.__init__(self, 0.0, rows, inputs, math.inf, priority)
        self.deadline_timer: asyncio.TimerHandle | None = None
        self.trace: RequestTrace | None = None
        self._on_done: Callable[[Outcome], None] | None = None
        self.on_cancel: Callable[[QueuedRequest], None] | None = None
        self._observer: RequestObserver | None = None
        self._parts: dict[int, Tensors] | None = None
        self._rows_done = 0
        self._digest: int | None = None

    def begin(
        self,
        arrival_s: float,
        on_done: Callable[[Outcome], None],
        deadline_s: float = math.inf,
        observer: RequestObserver | None = None,
    ) -> None:
        """Set what is not known when a request is parsed; times are by `time.monotonic`.

        `on_done` is called once with the outcome, unless the request is given up. The `observer`
        counts it if it gets no outputs.
        """
        self.arrival_s, self.deadline_s = arrival_s, deadline_s
        self._on_done, self._observer = on_done, observer

    @property
    def inputs(self) -> Tensors:
        inputs: Tensors = self.content
        return inputs

    @property
    def digest(self) -> int:
        if self._digest is None:
            self._digest = digest_of(self.content)
        return self._digest

    @property
    def done(self) -> bool:
        """Whether the sender has its outcome, or gave the request up."""
        return self._on_done is None

    def cancel(self) -> None:
        """Abandon the request: it leaves the queue, and its sender gets no outcome."""
        if self._on_done is None:
            return
        self._on_done = None
        self._stop_timer()
        if self.on_cancel is not None:
            self.on_cancel(self)
        if self._observer is not None:
            self._observer.client_left(self.rows, self.arrival_s)

    def finish(self, outcome: Outcome) -> None:
        """Pass the outcome to the sender, unless it has one or gave the request up.

        An error is counted. Outputs are, once they are encoded.
        """
        on_done, self._on_done = self._on_done, None
        if on_done is None:
            return
        self._stop_timer()
        if self._observer is not None and isinstance(outcome, RequestError):
            deadline_ms = 1e3 * (self.deadline_s - self.arrival_s)
            self._observer.failed(outcome, self.rows, self.arrival_s, deadline_ms)
        try:
            on_done(outcome)
        except Exception:
            # The other requests of the batch must get their answers.
            logger.exception("failed to hand an outcome to the sender of its request")

    def add_outputs(self, start: int, stop: int, outputs: Tensors) -> bool:
        """Add the outputs of rows ``start`` to ``stop - 1``; finish once all are there."""
        if stop - start == self.rows:
            self.finish(outputs)
            return True
        # A slice that was in a failed batch is done after the slices that follow it.
        if self._parts is None:
            self._parts = {}
        self._parts[start] = outputs
        self._rows_done += stop - start
        if self._rows_done < self.rows:
            return False
        self.finish(_joined([self._parts[start] for start in sorted(self._parts)]))
        return True

    def _stop_timer(self) -> None:
        if self.deadline_timer is not None:
            self.deadline_timer.cancel()
            self.deadline_timer = None


def _joined(parts: Sequence[Tensors]) -> Outcome:
    try:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    except ValueError:
        # A dimension of any length, which may differ from batch to batch.
        return ModelError("the rows of this request have outputs of different shapes; send fewer")


class Cancellable(Protocol):
    """A request that is under way."""

    def cancel(self) -> object:
        """Abandon the request."""


async def outputs_of(start: Callable[[Callable[[Outcome], None]], Cancellable]) -> Tensors:
    """Start a request, and return its outputs; cancelling the call gives the request up.

    `RequestError`: the outcome is one, or `start` raised it.
    """
    future: asyncio.Future[Tensors] = asyncio.get_running_loop().create_future()
    call = start(partial(_resolve, future))
    try:
        return await future
    except asyncio.CancelledError:
        call.cancel()
        raise


def _resolve(future: "asyncio.Future[Tensors]", outcome: Outcome) -> None:
    if future.cancelled():
        return
    if isinstance(outcome, RequestError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def queued(request: Request) -> QueuedRequest:
    """Return a request of the core as what it is in the live batcher."""
    assert isinstance(request, QueuedRequest)
    return request
