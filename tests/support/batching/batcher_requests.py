"""Requests to a live batcher, with callbacks and as coroutines."""

import math
from collections.abc import Callable

from deployments.batcher.asyncio_batcher import Batcher
from deployments.batcher.queued_request import Outcome, QueuedRequest, outputs_of
from deployments.batcher.shapes import Tensors


def submit_nowait(
    batcher: Batcher,
    inputs: Tensors,
    rows: int,
    arrival_s: float,
    on_done: Callable[[Outcome], None],
    deadline_s: float = math.inf,
    priority: int = 0,
) -> QueuedRequest:
    """Submit a request, and return it."""
    request = QueuedRequest(inputs, rows, priority)
    request.begin(arrival_s, on_done, deadline_s)
    batcher.submit(request)
    return request


async def submit(
    batcher: Batcher,
    inputs: Tensors,
    rows: int,
    arrival_s: float,
    deadline_s: float = math.inf,
    priority: int = 0,
) -> Tensors:
    """Return the outputs of a request; cancelling the call gives it up."""
    return await outputs_of(
        lambda on_done: submit_nowait(
            batcher, inputs, rows, arrival_s, on_done, deadline_s, priority
        )
    )
