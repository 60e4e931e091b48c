"""Requests to a live batcher as coroutines."""

import math

from deployments.batcher.asyncio_batcher import Batcher
from deployments.batcher.shapes import Tensors
from deployments.batcher.submission import outputs_of


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
        lambda on_done: batcher.submit_nowait(
            inputs, rows, arrival_s, on_done, deadline_s, priority
        )
    )
