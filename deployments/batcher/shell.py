"""The batcher, live: the core on the event loop's clock, and one thread that drives the device.

The event loop never blocks and wakes once per batch. When a batch is done the next one starts
first; then the answers of the old one leave.
"""

import asyncio
import logging
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.batcher.core import Batch, BatcherCore, Refusal, Request, Slice, StartReason
from deployments.models.base import Model
from sojourn.errors import BusyError, DeadlineError, ModelError, RequestError

logger = logging.getLogger("sojourn.batcher")

Tensors = Mapping[str, NDArray[Any]]


@dataclass(slots=True)
class _Pending:
    """What the shell keeps with a request: what came, what is done of it, who waits for it."""

    inputs: Tensors
    future: asyncio.Future[Tensors]
    parts: list[Tensors]
    rows_done: int = 0


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch as it was: for metrics."""

    size: int
    reason: StartReason
    duration_s: float
    energy_mj: float | None
    failed: bool


class Batcher:
    """Batches the rows of concurrent requests on one device.

    Must be made and used on a running event loop.

    Parameters
    ----------
    model : Model
        A loaded model; its `forward` runs in this batcher's one thread only.
    core : BatcherCore
        The decisions.
    on_batch : callable, optional
        Called on the event loop with a `BatchRecord` after each batch.
    """

    def __init__(
        self,
        model: Model,
        core: BatcherCore,
        on_batch: Callable[[BatchRecord], None] = lambda record: None,
    ) -> None:
        self.core = core
        self.starts: Counter[StartReason] = Counter()
        self.offered_rows = 0
        self.refused_rows = 0
        self.completed_rows = 0
        self.late_rows = 0
        self._model = model
        self._on_batch = on_batch
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s: float | None = None
        self._batch_started_s: float | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._drive, name="sojourn-device", daemon=True)
        self._thread.start()

    async def submit(
        self,
        inputs: Tensors,
        rows: int,
        arrival_s: float,
        deadline_s: float = math.inf,
        priority: int = 0,
    ) -> Tensors:
        """Answer a request.

        Parameters
        ----------
        inputs : mapping of str to ndarray
            The model's inputs, `rows` rows each.
        rows : int
            How many.
        arrival_s : float
            When the request reached this process, by `time.monotonic`.
        deadline_s : float
            When its answer is of no use any more, by the same clock.
        priority : int
            0 is normal, 1 is high.

        Returns
        -------
        mapping of str to ndarray
            The model's outputs, `rows` rows each.

        Raises
        ------
        BusyError
            There is no room, or the deadline cannot be met here.
        DeadlineError
            The deadline passed.
        RequestError
            The model failed on it.
        """
        pending = _Pending(inputs, self._loop.create_future(), [])
        request = Request(arrival_s, rows, pending, deadline_s, priority)
        self.offered_rows += rows
        refusal = self.core.arrive(arrival_s, request)
        if refusal is not None:
            self.refused_rows += rows
            raise self._refused(refusal)
        self.advance()
        timer = None
        if deadline_s < math.inf:
            timer = self._loop.call_later(
                deadline_s - time.monotonic(), self._deadline_passed, request
            )
        try:
            return await pending.future
        except asyncio.CancelledError:
            self.core.cancel(request)
            self.advance()
            raise
        finally:
            if timer:
                timer.cancel()

    def _refused(self, refusal: Refusal) -> BusyError:
        if refusal is Refusal.TOO_LATE:
            return BusyError("this replica cannot answer before the request's deadline")
        return BusyError(
            f"this replica is full: {self.core.queue_length} rows wait, room is for "
            f"{self.core.limits.waiting_room}"
        )

    def _deadline_passed(self, request: Request) -> None:
        self._give_up(request)
        self.advance()

    def _give_up(self, request: Request) -> None:
        """Tell who waits for `request` that its deadline has passed, or cannot be met."""
        pending: _Pending = request.content
        if not pending.future.done():
            self.late_rows += request.rows
            self.core.cancel(request)
            pending.future.set_exception(DeadlineError("the request's deadline cannot be met"))

    def refuse(self, rows: int = 1) -> None:
        """Count a request that was refused before it could be parsed."""
        self.offered_rows += rows
        self.refused_rows += rows
        self.core.arrival_rate.count(time.monotonic(), rows)

    def busy_for_s(self) -> float:
        """How long the batch on the device has been there; 0 when there is none."""
        started_s = self._batch_started_s
        return 0.0 if started_s is None else time.monotonic() - started_s

    async def drain(self) -> None:
        """Take nothing more; return when all that was accepted is answered."""
        self.core.drain()
        self.advance()
        await self._idle.wait()

    def close(self) -> None:
        """End the device's thread after the batch it is on; nobody is answered any more."""
        self._jobs.put(None)
        if self._timer:
            self._timer.cancel()

    def advance(self) -> None:
        """Start a batch if the core says so: after every event, and after its policy changed."""
        batch = self.core.next_batch(time.monotonic())
        while self.core.late:
            self._give_up(self.core.late.pop())
        if batch is not None:
            self.starts[batch.reason] += 1
            self._batch_started_s = time.monotonic()
            self._jobs.put(batch)
        if self.core.wake_at_s != self._timer_s:
            self._set_timer(self.core.wake_at_s)
        if self.core.device_busy or self.core.queue_length:
            self._idle.clear()
        else:
            self._idle.set()

    def _set_timer(self, at_s: float | None) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer_s = at_s
        self._timer = None
        if at_s is not None:
            self._timer = self._loop.call_later(at_s - time.monotonic(), self._on_timer)

    def _on_timer(self) -> None:
        self._timer_s = self._timer = None
        self.advance()

    def _finish(
        self, batch: Batch, results: list[Tensors | RequestError], duration_s: float
    ) -> None:
        self.core.device_free()
        self._batch_started_s = None
        self.advance()
        for part, result in zip(batch.slices, results, strict=True):
            self._deliver(part, result)
        energy_mj = self._model.batch_energy_mj(batch.size)
        failed = any(isinstance(result, RequestError) for result in results)
        self._on_batch(BatchRecord(batch.size, batch.reason, duration_s, energy_mj, failed))

    def _deliver(self, part: Slice, result: Tensors | RequestError) -> None:
        request, pending = part.request, part.request.content
        if pending.future.done():
            return
        if isinstance(result, RequestError):
            self.core.cancel(request)
            pending.future.set_exception(result)
            return
        pending.parts.append(result)
        pending.rows_done += part.stop - part.start
        self.completed_rows += part.stop - part.start
        if pending.rows_done == request.rows:
            pending.future.set_result(_joined(pending.parts))

    # What follows runs in the device's thread.

    def _drive(self) -> None:
        while (batch := self._jobs.get()) is not None:
            started_s = time.monotonic()
            results = self._compute(list(batch.slices))
            duration_s = time.monotonic() - started_s
            try:
                self._loop.call_soon_threadsafe(self._finish, batch, results, duration_s)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

    def _compute(self, slices: list[Slice]) -> list[Tensors | RequestError]:
        """Run the model on `slices`; halve what fails until the one that is to blame is alone."""
        size = sum(part.stop - part.start for part in slices)
        try:
            outputs = self._model.forward(_joined([_rows_of(part) for part in slices]))
            _check_rows(outputs, size, self._model)
        except RequestError as error:
            if len(slices) == 1 or isinstance(error, ModelError):
                return [error] * len(slices)
        except Exception:
            if len(slices) == 1:
                logger.exception("the model failed on a request of %d rows", size)
                return [ModelError("the model failed on this request")]
        else:
            results: list[Tensors | RequestError] = []
            offset = 0
            for part in slices:
                end = offset + part.stop - part.start
                results.append({name: array[offset:end] for name, array in outputs.items()})
                offset = end
            return results
        middle = len(slices) // 2
        return self._compute(slices[:middle]) + self._compute(slices[middle:])


def _rows_of(part: Slice) -> Tensors:
    inputs: Tensors = part.request.content.inputs
    if part.stop - part.start == part.request.rows:
        return inputs
    return {name: array[part.start : part.stop] for name, array in inputs.items()}


def _joined(parts: list[Tensors]) -> Tensors:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _check_rows(outputs: Tensors, size: int, model: Model) -> None:
    for spec in model.outputs:
        shape = np.shape(outputs[spec.name]) if spec.name in outputs else None
        if shape != (size, *spec.shape):
            logger.error("output %s: shape %s for a batch of %d", spec.name, shape, size)
            raise ModelError(f"the model gave output {spec.name!r} in a wrong shape")
