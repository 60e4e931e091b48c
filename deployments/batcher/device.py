"""The device's thread: runs batches on the model, one by one, and says what came of each."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.batcher.requests import Batch, Slice
from deployments.errors import ModelError, RequestError, RowsError
from deployments.models.base import Model

logger = logging.getLogger("sojourn.batcher")

Tensors = Mapping[str, NDArray[Any]]

#: After so many failed batches in a row the device has to answer the model's own example.
PROBE_AFTER = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """A batch on which the model failed.

    Attributes
    ----------
    error : RequestError
        What a request is told that turns out to be to blame.
    blamed : mapping of int to RequestError
        What is told to whom, by place in the batch, where the model knows.
    """

    error: RequestError
    blamed: Mapping[int, RequestError]


class _LostError(Exception):
    """The device answers nothing any more; the message is for its requests."""


class DeviceThread:
    """One thread that drives the device, for a batcher on an event loop.

    Parameters
    ----------
    model : Model
        A loaded model; its `forward` runs in this thread only.
    on_done : callable
        Called on the event loop after each batch, with the outputs of each of its slices, or a
        `Failure`, and the seconds it took.
    on_lost : callable
        Called there, once, when the device answers nothing any more; given the reason.
    """

    def __init__(
        self,
        model: Model,
        on_done: Callable[[Batch, list[Tensors] | Failure, float], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._model = model
        self._on_done = on_done
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._failures_in_a_row = 0
        threading.Thread(target=self._drive, name="sojourn-device", daemon=True).start()

    def start(self, batch: Batch) -> None:
        """Run `batch` after those before it."""
        self._jobs.put(batch)

    def close(self) -> None:
        """End the thread after the batch it is on."""
        self._jobs.put(None)

    def _drive(self) -> None:
        while (batch := self._jobs.get()) is not None:
            started_s = time.monotonic()
            outcome: list[Tensors] | Failure
            try:
                outcome = self._run(batch)
            except _LostError as error:
                self._call_soon(self._on_lost, str(error))
                return
            if not self._call_soon(self._on_done, batch, outcome, time.monotonic() - started_s):
                return

    def _call_soon(self, callback: Callable[..., None], *arguments: object) -> bool:
        """Have the event loop call `callback`; False where it is closed and nobody waits."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            return False
        return True

    def _run(self, batch: Batch) -> list[Tensors] | Failure:
        try:
            outputs = self._model.forward(joined([_rows_of(part) for part in batch.slices]))
            _check_rows(outputs, batch.size, self._model)
            # A model may write its next batch where this one is, before these answers have left.
            outputs = {spec.name: np.array(outputs[spec.name]) for spec in self._model.outputs}
        except Exception as error:
            self._probe(error)
            return _failure(batch, error)
        except BaseException as error:
            # What ends a thread ends this one with it: SystemExit, most likely.
            logger.exception("the model ended the device's thread")
            raise _LostError("the device of this replica is lost") from error
        self._failures_in_a_row = 0
        results: list[Tensors] = []
        offset = 0
        for _, start, stop in batch.slices:
            end = offset + stop - start
            results.append({name: array[offset:end] for name, array in outputs.items()})
            offset = end
        return results

    def _probe(self, error: Exception) -> None:
        """Tell a lost device from wrong requests: it fails on the model's own example, too.

        A CUDA device that met an illegal access, say, fails on all that follows. To try the example
        costs a batch of one, so it is not done after every failure.
        """
        self._failures_in_a_row += 1
        if self._failures_in_a_row < PROBE_AFTER or isinstance(error, RowsError | RequestError):
            return
        try:
            self._model.forward(self._model.example(1))
        except BaseException as again:
            logger.exception("the model fails on its own example, too")
            raise _LostError("the device of this replica is lost") from again
        self._failures_in_a_row = 0


def _failure(batch: Batch, error: Exception) -> Failure:
    """Say who is told what about `error`."""
    if isinstance(error, ModelError):
        return Failure(error, dict.fromkeys(range(len(batch.slices)), error))
    if isinstance(error, RequestError):
        return Failure(error, {})
    if isinstance(error, RowsError):
        blamed: dict[int, RequestError] = {}
        stop = 0
        for place, part in enumerate(batch.slices):
            start, stop = stop, stop + part.rows
            for row in range(start, stop):
                if row in error.errors:
                    blamed.setdefault(place, error.errors[row])
        if blamed:
            return Failure(next(iter(blamed.values())), blamed)
        logger.error("the model blames rows %s of %d", list(error.errors), batch.size)
    elif len(batch.slices) == 1:
        logger.error("the model failed on a request of %d rows", batch.size, exc_info=error)
    return Failure(ModelError("the model failed on this request"), {})


def _rows_of(part: Slice) -> Tensors:
    inputs: Tensors = part.request.content.inputs
    if part.stop - part.start == part.request.rows:
        return inputs
    return {name: array[part.start : part.stop] for name, array in inputs.items()}


def joined(parts: list[Tensors]) -> Tensors:
    """Put parts of rows together, in order."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _check_rows(outputs: Tensors, size: int, model: Model) -> None:
    for spec in model.outputs:
        shape = np.shape(outputs[spec.name]) if spec.name in outputs else None
        if shape != (size, *spec.shape):
            logger.error("output %s: shape %s for a batch of %d", spec.name, shape, size)
            raise ModelError(f"the model gave output {spec.name!r} in a wrong shape")
