"""The live batcher: the batcher core on the event loop's clock, in front of a device thread.

The event loop never blocks and wakes once per batch. When a batch is done, the next one starts
before the answers of the finished one are delivered.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from deployments.batcher.arrival_counts import ArrivalCounts
from deployments.batcher.core import Batch, BatcherCore, Refusal, Request, Slice, StartReason
from deployments.batcher.device import DeviceThread, Failure, Tensors, concatenate
from deployments.errors import BusyError, CrowdedOutError, DeadlineError, DeviceError, RequestError
from deployments.models.base import Model
from policy.burstiness import COUNT_WINDOW_S

logger = logging.getLogger("sojourn.batcher")


class _Pending:
    """A request's inputs, the outputs that are done, and the future that its sender awaits."""

    __slots__ = ("future", "inputs", "parts", "rows_done")

    def __init__(self, inputs: Tensors, future: "asyncio.Future[Tensors]") -> None:
        self.inputs = inputs
        self.future = future
        self.parts: dict[int, Tensors] = {}
        self.rows_done = 0


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A finished batch, for metrics and `GET /sojourn/policy`.

    Attributes
    ----------
    size : int
        Number of rows.
    reason : StartReason
        Why it was started.
    queue_length_left : int
        Rows left waiting when it started.
    oldest_wait_s : float
        How long its oldest request had waited when it started.
    duration_s : float
        Time on the device.
    energy_mj : float or None
        Energy of the batch; None unless the model reports it.
    failed : bool
        Whether the model failed on it.
    """

    size: int
    reason: StartReason
    queue_length_left: int
    oldest_wait_s: float
    duration_s: float
    energy_mj: float | None
    failed: bool


class Batcher:
    """Batch the rows of concurrent requests on one device.

    Create and use it on a running event loop.

    Parameters
    ----------
    model : Model
        A loaded model; its `forward` runs only in this batcher's device thread.
    core : BatcherCore
        Decides when batches start and what is in them.
    on_batch : callable, optional
        Called on the event loop with a `BatchRecord` after each batch.

    Attributes
    ----------
    lost_reason : str or None
        Why the device is lost, which means that this replica must be replaced; None while it works.
    starts : Counter of StartReason
        Batches started.
    offered_rows, refused_rows, completed_rows : int
        Rows that reached this batcher; those refused or crowded out; those answered with outputs.
    deadline_missed_rows, expired_rows : int
        Rows dropped because their request's own deadline, or the SLA's, passed or could not be met.
    arrival_counts : ArrivalCounts
        `offered_rows` by windows of `policy.burstiness.COUNT_WINDOW_S`.
    """

    def __init__(
        self,
        model: Model,
        core: BatcherCore,
        on_batch: Callable[[BatchRecord], None] = lambda record: None,
    ) -> None:
        self.core = core
        self.lost_reason: str | None = None
        self.starts: Counter[StartReason] = Counter()
        self.offered_rows = 0
        self.refused_rows = 0
        self.completed_rows = 0
        self.deadline_missed_rows = 0
        self.expired_rows = 0
        self.arrival_counts = ArrivalCounts(COUNT_WINDOW_S)
        self._model = model
        self._on_batch = on_batch
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s: float | None = None
        self._batch: Batch | None = None
        self._batch_started_s = math.nan
        self._queue_left = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._device = DeviceThread(model, self._finish, self.lose_device)

    async def submit(
        self,
        inputs: Tensors,
        rows: int,
        arrival_s: float,
        deadline_s: float = math.inf,
        priority: int = 0,
    ) -> Tensors:
        """Queue a request and return its outputs.

        Parameters
        ----------
        inputs : mapping of str to ndarray
            The model's inputs, each of shape ``(rows, ...)``.
        rows : int
            Number of rows.
        arrival_s : float
            When the request reached this process, by `time.monotonic`.
        deadline_s : float
            When its answer becomes useless, by the same clock.
        priority : int
            0 is normal, 1 is high.

        Returns
        -------
        mapping of str to ndarray
            The model's outputs, each of shape ``(rows, ...)``.

        Raises
        ------
        BusyError
            There is no room, or the deadline cannot be met here.
        DeviceError
            The device hangs or is lost.
        DeadlineError
            The deadline passed or can no longer be met.
        CrowdedOutError
            Its batch failed, and there is no room to retry it.
        RequestError
            The model failed on the request.
        """
        pending = _Pending(inputs, self._loop.create_future())
        request = Request(arrival_s, rows, pending, deadline_s, priority)
        self.offered_rows += rows
        self.arrival_counts.count(arrival_s, rows)
        refusal = self.core.arrive(arrival_s, request)
        if refusal is Refusal.HOPELESS and self.lost_reason is None:
            # No other replica could answer in time, so this is no sign of too few replicas.
            self.deadline_missed_rows += rows
            raise DeadlineError("the request's deadline is shorter than its own processing time")
        if refusal is not None:
            self.refused_rows += rows
            raise self._refusal_error(refusal)
        # A busy device cannot start a batch.
        if not self.core.device_busy:
            self.advance()
        timer = None
        if deadline_s < math.inf:
            timer = self._loop.call_later(deadline_s - time.monotonic(), self._on_deadline, request)
        try:
            return await pending.future
        except asyncio.CancelledError:
            self.core.cancel(request)
            self.advance()
            raise
        finally:
            if timer:
                timer.cancel()

    def _refusal_error(self, refusal: Refusal) -> RequestError:
        if self.lost_reason is not None:
            return DeviceError(self.lost_reason)
        if refusal is Refusal.DEADLINE:
            return BusyError("this replica cannot answer before the request's deadline")
        return BusyError(
            f"this replica is full: {self.core.queue_length} rows are waiting; try again later"
        )

    def _on_deadline(self, request: Request) -> None:
        self._miss_deadline(request)
        self.advance()

    def _miss_deadline(self, request: Request) -> None:
        """Answer `request` with a `DeadlineError`: its deadline passed or cannot be met.

        The status is 504, and not the 503 of a refusal: HAProxy would try another replica, too
        late.
        """
        pending: _Pending = request.content
        if pending.future.done():
            return
        self.core.cancel(request)
        if request.deadline_s < math.inf:
            self.deadline_missed_rows += request.rows
            message = "the request's deadline cannot be met"
        else:
            self.expired_rows += request.rows
            message = "the request cannot be answered within the SLA's response time"
        pending.future.set_exception(DeadlineError(message))

    def _crowd_out(self, request: Request) -> None:
        """Answer a suspected request with a `CrowdedOutError`."""
        future = request.content.future
        if not future.done():
            self.refused_rows += request.rows
            future.set_exception(
                CrowdedOutError("the batch failed and the retry queue is full; try again later")
            )

    def count_refused(self, rows: int) -> None:
        """Count the rows of a request that was refused before it was parsed."""
        self.offered_rows += rows
        self.refused_rows += rows
        now_s = time.monotonic()
        self.arrival_counts.count(now_s, rows)
        self.core.count_refused(now_s, rows)

    def busy_for_s(self) -> float:
        """Return how long the current batch has been on the device; 0 without a batch."""
        return 0.0 if self._batch is None else time.monotonic() - self._batch_started_s

    def lose_device(self, reason: str) -> None:
        """Give up the device: answer all requests with `reason`, and refuse new ones.

        The batch on the device may still end, but its results are discarded: HAProxy may have sent
        its requests to another replica already.
        """
        if self.lost_reason is not None:
            return
        self.lost_reason = reason
        logger.error("%s", reason)
        requests = self.core.device_lost()
        if self._batch is not None:
            requests += [part.request for part in self._batch.slices]
            self._batch = None
        for request in requests:
            if not request.content.future.done():
                request.content.future.set_exception(DeviceError(reason))
        self.advance()

    async def drain(self) -> None:
        """Refuse new requests; return when all accepted requests are answered."""
        self.core.drain()
        self.advance()
        await self._idle.wait()

    def close(self) -> None:
        """End the device thread after its current batch; open requests get no answer."""
        self._device.close()
        if self._timer:
            self._timer.cancel()

    def advance(self) -> None:
        """Start a batch if the core has one; call this after every event and policy change."""
        batch = self.core.next_batch(time.monotonic())
        while self.core.deadline_missed:
            self._miss_deadline(self.core.deadline_missed.pop())
        while self.core.crowded_out:
            self._crowd_out(self.core.crowded_out.pop())
        if batch is not None:
            self.starts[batch.reason] += 1
            self._batch = batch
            self._batch_started_s = time.monotonic()
            self._queue_left = self.core.queue_length
            self._device.start(batch)
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

    def _finish(self, batch: Batch, outcome: list[Tensors] | Failure, duration_s: float) -> None:
        if self.lost_reason is not None:
            return
        started_s, queue_left = self._batch_started_s, self._queue_left
        self._batch = None
        failed: list[int] = []
        if isinstance(outcome, Failure):
            failed = self.core.device_failed(batch, outcome.blamed)
        else:
            self.core.device_free()
        self.advance()
        if isinstance(outcome, Failure):
            for place in failed:
                future = batch.slices[place].request.content.future
                if not future.done():
                    future.set_exception(outcome.blamed.get(place, outcome.error))
        else:
            for part, result in zip(batch.slices, outcome, strict=True):
                self._deliver(part, result)
        oldest_s = min([part.request.arrival_s for part in batch.slices])
        self._on_batch(
            BatchRecord(
                batch.size,
                batch.reason,
                queue_left,
                started_s - oldest_s,
                duration_s,
                self._model.batch_energy_mj(batch.size),
                isinstance(outcome, Failure),
            )
        )

    def _deliver(self, part: Slice, result: Tensors) -> None:
        request, start, stop = part
        pending: _Pending = request.content
        if pending.future.done():
            return
        self.completed_rows += stop - start
        if stop - start == request.rows:
            pending.future.set_result(result)
            return
        # A slice that was in a failed batch is done after the slices that follow it.
        pending.parts[start] = result
        pending.rows_done += stop - start
        if pending.rows_done == request.rows:
            parts = [pending.parts[start] for start in sorted(pending.parts)]
            pending.future.set_result(concatenate(parts))
