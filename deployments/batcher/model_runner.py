"""Run batches on the model, and tell a request's fault from a lost device."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.batcher.model_errors import ModelErrors
from deployments.batcher.shapes import BatchShapes, Tensors
from deployments.errors import ModelError, RequestError, RowsError
from deployments.models.base import Model
from deployments.models.example_request import example_batch
from deployments.models.outputs import fit_output, wrong_shape
from policy.batcher.requests import Batch, StartReason


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A finished batch, for metrics and `GET /sojourn/policy`.

    `queue_length_left` rows were left waiting when it started. `cpu_s` is of the thread that ran
    it; `on_loop`: that was the event loop's own.
    """

    size: int
    reason: StartReason
    queue_length_left: int
    oldest_wait_s: float
    duration_s: float
    failed: bool
    cpu_s: float = 0.0
    on_loop: bool = False

    def explain(self) -> dict[str, Any]:
        return {
            "reason": self.reason.value,
            "size": self.size,
            "queue_length_left": self.queue_length_left,
            "oldest_wait_ms": 1e3 * self.oldest_wait_s,
            "duration_ms": 1e3 * self.duration_s,
            "on_event_loop": self.on_loop,
            "failed": self.failed,
        }


logger = logging.getLogger("sojourn.batcher")

#: After this many failed batches in a row, the device is probed with the model's own example.
PROBE_AFTER = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """A batch on which the model failed.

    `error` is the answer to the culprit, once it is found. `blamed` has the answers to the culprits
    that the model named, by index into the batch's slices.
    """

    error: RequestError
    blamed: Mapping[int, RequestError]


@dataclass(frozen=True, slots=True)
class BatchRun:
    """A batch that was run: the outcome of each slice, or why there is none.

    `cpu_s` is of the thread that ran it.
    """

    outcome: Sequence[Tensors | ModelError] | Failure
    duration_s: float
    cpu_s: float


class DeviceLostError(Exception):
    """The device is lost; the message goes to its requests."""


class ModelRunner:
    """Run batches on a loaded model, whose `forward` nobody else calls."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.errors = ModelErrors()
        self.shapes = BatchShapes(model.inputs, model.outputs)
        self._failures_in_a_row = 0

    def run(self, batch: Batch) -> BatchRun:
        """Run a batch; `DeviceLostError` if the device can answer none any more."""
        started_s, started_cpu_s = time.monotonic(), time.thread_time()
        outcome = self._outcome(batch)
        return BatchRun(outcome, time.monotonic() - started_s, time.thread_time() - started_cpu_s)

    def _outcome(self, batch: Batch) -> Sequence[Tensors | ModelError] | Failure:
        try:
            outputs = self._model.forward(self.shapes.join(batch.slices))
            wrong = wrong_shape(outputs, batch.size, self._model.outputs)
            if wrong is not None:
                raise ModelError(f"the model returned wrong outputs: {wrong}")
            results = self._results(outputs, batch)
        except Exception as error:
            self._probe(error)
            return self._failure(batch, error)
        except BaseException as error:
            # SystemExit, most likely: the model wants its process to end, so the device is lost.
            logger.exception("the model ended its thread")
            raise DeviceLostError("the device of this replica is lost") from error
        self._failures_in_a_row = 0
        return results

    def _results(self, outputs: Tensors, batch: Batch) -> Sequence[Tensors | ModelError]:
        """Return the outputs of each slice in their declared datatypes, or what does not fit.

        They are copies: a model may reuse its output buffers before the answers have been sent.
        """
        specs = self._model.outputs
        try:
            fitted = {spec.name: fit_output(spec, outputs[spec.name]) for spec in specs}
            return self._divide(fitted, batch)
        except ModelError:
            given = {spec.name: np.asarray(outputs[spec.name]) for spec in specs}
            parts = self._divide(given, batch)
        results: list[Tensors | ModelError] = []
        for part, slice_ in zip(parts, batch.slices, strict=True):
            try:
                results.append({spec.name: fit_output(spec, part[spec.name]) for spec in specs})
            except ModelError as error:
                results.append(error.with_traceback(None))
                self.errors.record(error, slice_.rows, slice_.request.request_id)
        return results

    def _divide(self, outputs: Tensors, batch: Batch) -> list[dict[str, NDArray[Any]]]:
        """Return the outputs of each slice of a batch, without those of padding."""
        results = []
        offset = 0
        for _, start, stop in batch.slices:
            end = offset + stop - start
            results.append({name: array[offset:end] for name, array in outputs.items()})
            offset = end
        self.shapes.cut(results, batch.slices)
        return results

    def _probe(self, error: Exception) -> None:
        """Raise `DeviceLostError` if the device fails on the model's own example, too.

        This tells a lost device from faulty requests: after an illegal memory access, for example,
        a CUDA device fails on every later batch. A probe costs a batch of one, so at most every
        `PROBE_AFTER`-th failure in a row is followed by one.
        """
        self._failures_in_a_row += 1
        if self._failures_in_a_row < PROBE_AFTER or isinstance(error, RowsError | RequestError):
            return
        try:
            self._model.forward(example_batch(self._model, 1))
        except BaseException as again:
            logger.exception("the model fails on its own example, too")
            raise DeviceLostError("the device of this replica is lost") from again
        self._failures_in_a_row = 0

    def _failure(self, batch: Batch, error: Exception) -> Failure:
        if isinstance(error, RequestError) and not isinstance(error, ModelError):
            return Failure(error, {})
        if isinstance(error, RowsError):
            blamed: dict[int, RequestError] = {}
            stop = 0
            for place, part in enumerate(batch.slices):
                start, stop = stop, stop + part.rows
                found = [error.errors[row] for row in range(start, stop) if row in error.errors]
                if found:
                    blamed[place] = found[0]
                    if found[0].status >= 500:
                        self.errors.record(found[0], part.rows, part.request.request_id)
            if blamed:
                return Failure(next(iter(blamed.values())), blamed)
            logger.error(
                "the model blames rows %s of a batch of %d", list(error.errors), batch.size
            )
        elif len(batch.slices) == 1:
            self.errors.record(error, batch.size, batch.slices[0].request.request_id)
        if not isinstance(error, ModelError):
            error = ModelError("the model failed on this request")
        return Failure(error, {})
