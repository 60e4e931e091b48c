"""What a batch that ended means to the senders of its requests."""

import time
from collections.abc import Callable, Collection, Sequence

from deployments.batcher.model_runner import BatchRun, Failure
from deployments.batcher.queued_request import QueuedRequest, queued
from deployments.batcher.shapes import Tensors
from deployments.errors import ModelError
from deployments.observability.tracing import BatchTimes
from policy.batcher.requests import Batch


def deliver_outputs(
    batch: Batch,
    outputs: Sequence[Tensors | ModelError],
    on_answered: Callable[[QueuedRequest], None],
    on_failed: Callable[[QueuedRequest], None],
) -> int:
    """Hand over the outputs of each slice; return the rows whose senders still wait for them.

    `on_answered` is called with each request whose last rows these are, `on_failed` with each that
    an error answers.
    """
    rows = 0
    for (request, start, stop), part in zip(batch.slices, outputs, strict=True):
        submission = queued(request)
        if isinstance(part, ModelError):
            on_failed(submission)
            submission.finish(part)
        elif not submission.done:
            rows += stop - start
            if submission.add_outputs(start, stop, part):
                on_answered(submission)
    return rows


def deliver_failure(batch: Batch, failure: Failure, failed: Collection[int]) -> None:
    for place in failed:
        culprit = queued(batch.slices[place].request)
        culprit.finish(failure.blamed.get(place, failure.error))


def trace_batch(batch: Batch, run: BatchRun, started_s: float) -> None:
    """Record the times of a batch for those of its requests that are traced."""
    traces = [
        submission.trace
        for part in batch.slices
        if (submission := queued(part.request)).trace is not None
    ]
    if traces:
        failed = isinstance(run.outcome, Failure)
        times = BatchTimes(
            started_s, time.monotonic(), run.duration_s, batch.size, batch.reason.value, failed
        )
        for trace in traces:
            trace.batches.append(times)
