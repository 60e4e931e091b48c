"""A model that squares numbers, which the test controls, and requests to a live batcher of it."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deployments.batcher.asyncio_batcher import Batcher
from deployments.batcher.queued_request import Outcome, QueuedRequest, outputs_of
from deployments.batcher.shapes import Tensors
from deployments.errors import BadRequestError, RowsError
from deployments.models.base import Model, TensorSpec
from tests.support.waiting import LIMIT_S

Arrays = Mapping[str, NDArray[Any]]


class Squares(Model):
    """Square `x`, once the gate is open; some values of `x` make a batch fail.

    Negative: an unknown error. 13: a `RequestError`. 14: a `RowsError` that names the rows.
    990: the thread ends. 991: the device fails from then on.
    """

    inputs = (TensorSpec("x", "FP64", ()),)
    outputs = (TensorSpec("y", "FP64", ()),)

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[list[float]] = []
        self.threads: set[int] = set()
        self.broken = False
        self.answer: Callable[[NDArray[Any]], NDArray[Any]] = np.square

    def load(self, device: str) -> None: ...

    def forward(self, batch: Arrays) -> Arrays:
        assert self.gate.wait(LIMIT_S)
        x = batch["x"]
        self.threads.add(threading.get_ident())
        self.batches.append(x.tolist())
        if (x < 0).any():
            raise ArithmeticError("poison")
        if (x == 13).any():
            raise BadRequestError("13 is not allowed")
        if (x == 14).any():
            places = np.flatnonzero(x == 14).tolist()
            raise RowsError({place: BadRequestError("14 is not allowed") for place in places})
        if (x == 990).any():
            raise SystemExit("the driver gave up")
        self.broken = self.broken or (x == 991).any()
        if self.broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return {"y": self.answer(x)}


def send(
    batcher: Batcher,
    values: ArrayLike,
    on_done: Callable[[Outcome], None],
    arrival_s: float | None = None,
    deadline_s: float = math.inf,
) -> QueuedRequest:
    """Submit a request of one row for each value."""
    x = np.asarray(values, np.float64)
    request = QueuedRequest({"x": x}, len(x))
    request.begin(time.monotonic() if arrival_s is None else arrival_s, on_done, deadline_s)
    batcher.submit(request)
    return request


def ask(batcher: Batcher, *values: Any, **times_s: float) -> asyncio.Task[Tensors]:
    """Send a request as soon as the event loop runs; cancelling the task gives it up."""
    return asyncio.ensure_future(
        outputs_of(lambda on_done: send(batcher, values, on_done, **times_s))
    )


async def squares_of(batcher: Batcher, *requests: list[Any]) -> list[Any]:
    """Send requests at once; return the outputs of each, or its error."""
    return await outcomes(*(ask(batcher, *values) for values in requests))


async def outcomes(*asked: asyncio.Task[Tensors]) -> list[Any]:
    """Return the outputs of each request, or its error."""
    ends = await asyncio.gather(*asked, return_exceptions=True)
    return [end["y"].tolist() if isinstance(end, dict) else end for end in ends]
