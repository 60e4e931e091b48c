"""The live batcher: the batcher core on the event loop's clock, in front of the device.

Requests that are read in one iteration of the event loop can share a batch: the core is asked for
one at the end of the iteration. When a batch on the device thread is done, the next one starts
before the answers of the finished one are delivered.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence

from deployments.batcher.crash_journal import CrashJournal
from deployments.batcher.death_guard import DeathGuard
from deployments.batcher.device import DeviceThread, WakeTimer, run_on_loop
from deployments.batcher.model_runner import (
    BatchRecord,
    BatchRun,
    DeviceLostError,
    Failure,
    ModelRunner,
)
from deployments.batcher.placement import BatchPlacement
from deployments.batcher.queued_request import QueuedRequest, queued
from deployments.batcher.rejections import RejectionHandler
from deployments.batcher.row_counts import RowCounts
from deployments.batcher.shapes import Tensors
from deployments.errors import DeviceError, ModelError
from deployments.models.base import Model
from deployments.observability.tracing import BatchTimes
from policy.batcher.core import BatcherCore
from policy.batcher.requests import Batch, StartReason

logger = logging.getLogger("sojourn.batcher")

#: How long the event loop may run full batches, one after the other, before it reads again. After a
#: poll that returned hundreds of requests, one batch a turn would leave most of them too late.
LONGEST_TURN_S = 0.01


class Batcher:
    """Batch the rows of concurrent requests on one device.

    Create and use it on a running event loop. `placement` decides which batches the event loop runs
    itself, by default none. `prepare_thread` is called in the device thread before its first batch.
    The `journal`, where other replicas read what was on the device if this process dies, is closed
    with the batcher. A device with a `lost_reason` is lost: this replica must be replaced.
    """

    def __init__(
        self,
        model: Model,
        core: BatcherCore,
        on_batch: Callable[[BatchRecord], None] = lambda record: None,
        placement: BatchPlacement | None = None,
        prepare_thread: Callable[[], None] = lambda: None,
        journal: CrashJournal | None = None,
    ) -> None:
        self.core = core
        self.placement = placement or BatchPlacement()
        self.starts: Counter[StartReason] = Counter()
        self.rows = RowCounts()
        self.rejections = RejectionHandler(core, self.rows)
        self._model = model
        self._on_batch = on_batch
        self.deaths = DeathGuard(core, journal, idempotent=model.idempotent)
        self._loop = asyncio.get_running_loop()
        self._wake = WakeTimer(self._loop, self._advance_now)
        self._overdue = WakeTimer(self._loop, self._give_up_late)
        self._batch: Batch | None = None
        self._batch_started_s = math.nan
        self._queue_left = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._advance_soon: asyncio.Handle | None = None
        self._advancing = False
        self.runner = ModelRunner(model)
        self._device = DeviceThread(self.runner, self._finish, self.lose_device, prepare_thread)

    @property
    def lost_reason(self) -> str | None:
        """Why the device is lost; None while it is not."""
        return self.rejections.lost_reason

    def submit(self, request: QueuedRequest) -> None:
        """Queue a request that has begun (`QueuedRequest.begin`).

        Other outcomes are a `CrowdedOutError`, if its batch failed and there is no room to retry
        it, and any `RequestError` of the model.

        Raises
        ------
        BusyError
            There is no room, or the deadline cannot be met here.
        DeviceError
            The device hangs or is lost. Also an outcome.
        DeadlineError
            The deadline can no longer be met, or passed. Also an outcome.
        """
        rows, now_s = request.rows, time.monotonic()
        request.kind = self.runner.shapes.class_of(request.content)
        request.on_cancel = self._give_up
        self.rows.offered += rows
        if self._full_batch_is_due():
            self.make_room(rows, now_s, request.arrival_s, request.priority)
        refusal = self.core.arrive(now_s, request)
        if refusal is not None:
            raise self.rejections.refused(refusal, rows)
        # A busy device cannot start a batch.
        if not self.core.device_busy or self.core.given_up:
            self.advance()
        if request.deadline_s < math.inf:
            request.deadline_timer = self._loop.call_later(
                request.deadline_s - time.monotonic(), self._on_deadline, request
            )

    def make_room(self, rows: int, now_s: float, arrival_s: float, priority: int = 0) -> bool:
        """Return whether `rows` more rows may wait; if not, see whether a full batch can start.

        A batch that is to start at the end of the event loop's iteration starts now if there is no
        room otherwise and nothing more could be in it: a request is not refused because of others
        that an idle device is to take anyway.
        """
        room = self.core.has_room(rows, now_s, arrival_s, priority=priority)
        if not room and self._full_batch_is_due():
            self._advance_now()
            room = self.core.has_room(rows, now_s, arrival_s, priority=priority)
        return room

    def _full_batch_is_due(self) -> bool:
        """Return whether nothing more could be in the batch that is to start soon."""
        is_due = self._advance_soon is not None and not self._advancing
        return is_due and self.core.queue_length >= self.core.limits.rows_that_fill

    def _give_up(self, request: QueuedRequest) -> None:
        self.rows.cancelled += request.rows
        self.core.cancel(request)
        self.advance()

    def _give_up_late(self) -> None:
        """Refuse what waits for an overdue batch, so that others answer it."""
        self._overdue.set(self.core.give_up_late(time.monotonic()))
        self._answer_given_up()
        self._note_idle()

    def _answer_given_up(self) -> None:
        while self.core.given_up:
            self.rejections.given_up(self.core.given_up.pop(), time.monotonic())

    def _on_deadline(self, request: QueuedRequest) -> None:
        request.deadline_timer = None
        self.rejections.too_late(request)
        self.advance()

    def expire(self, oldest_s: float) -> None:
        """Answer all requests that arrived before `oldest_s`: their time is over.

        Those on the device are answered as well, though it goes on with them.
        """
        running = self._batch.slices if self._batch is not None else ()
        for request in {*self.core.requests(), *(part.request for part in running)}:
            if request.arrival_s < oldest_s and not request.cancelled:
                self.rejections.too_late(request, "the request was not answered in time")
        self.advance()

    def busy_for_s(self) -> float:
        """Return how long the current batch has been on the device; 0 without a batch."""
        return 0.0 if self._batch is None else time.monotonic() - self._batch_started_s

    @property
    def size_on_device(self) -> int:
        return 0 if self._batch is None else self._batch.size

    def hang_in_words(self) -> str:
        """Return how long the batch on the device has taken, and where the model is."""
        line = self._device.current_line({made.__module__ for made in type(self._model).__mro__})
        where = f" in {line}" if line else ""
        return f"a batch of {self.size_on_device} has hung for {self.busy_for_s():.0f} s{where}"

    def lose_device(self, reason: str) -> None:
        """Abandon the device: answer all requests with `reason`, and refuse new ones.

        The batch on the device may still end, but its results are discarded: HAProxy may have sent
        its requests to another replica already.
        """
        if self.lost_reason is not None:
            return
        self.rejections.lost_reason = reason
        logger.error("%s", reason)
        waiting, now_s = self.core.device_lost(), time.monotonic()
        if self._batch is not None:
            # Any of them may be the reason; the others are free to go elsewhere.
            for part in self._batch.slices:
                error = self.deaths.device_lost(part.request, reason)
                self.rejections.lost(part.request, error, now_s)
            self._batch = None
        for request in waiting:
            self.rejections.lost(request, DeviceError(reason), now_s)
        self.advance()

    async def drain(self) -> None:
        """Refuse new requests; return when all accepted requests are answered."""
        self.core.drain()
        self._advance_now()
        await self._idle.wait()

    def close(self) -> None:
        """End the device thread after its current batch; open requests get no answer."""
        self._device.close()
        self.deaths.close()
        self._wake.cancel()
        self._overdue.cancel()
        if self._advance_soon:
            self._advance_soon.cancel()

    def advance(self) -> None:
        """Start a batch if the core has one; call this after every event and policy change.

        This happens at the end of the event loop's iteration, so that all requests that are read in
        it can be in the batch.
        """
        if self._advance_soon is None:
            self._advance_soon = self._loop.call_soon(self._advance_now)

    def _advance_now(self) -> None:
        if self._advance_soon is not None:
            self._advance_soon.cancel()
            self._advance_soon = None
        began_s = time.monotonic()
        self._advancing = True
        try:
            # What would be read meanwhile could not be in the next batch, either, if that is full.
            while (
                self._start_batch()
                and self.core.queue_length >= self.core.limits.max_batch_size
                and time.monotonic() < began_s + LONGEST_TURN_S
            ):
                pass
        finally:
            self._advancing = False
        self._wake.set(self.core.wake_at_s)
        self._note_idle()

    def _start_batch(self) -> bool:
        """Start a batch if the core has one; return whether this thread ran it."""
        batch = self.deaths.next_batch(time.monotonic())
        while self.core.deadline_missed:
            self.rejections.too_late(self.core.deadline_missed.pop())
        self._answer_given_up()
        while self.core.crowded_out:
            self.rejections.crowded_out(self.core.crowded_out.pop())
        if batch is None:
            return False
        self.starts[batch.reason] += 1
        self._batch = batch
        self._batch_started_s = time.monotonic()
        self._queue_left = self.core.queue_length
        if batch.size > self.placement.largest:
            self._device.start(batch)
            self._overdue.set(self.core.give_up_late(self._batch_started_s))
            return False
        self._run_here(batch)
        return True

    def _note_idle(self) -> None:
        if self.core.device_busy or self.core.queue_length:
            self._idle.clear()
        else:
            self._idle.set()

    def _run_here(self, batch: Batch) -> None:
        """Run a batch on the event loop's own thread."""
        try:
            run = run_on_loop(self.runner, self.placement, batch)
        except DeviceLostError as error:
            self.lose_device(str(error))
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise error.__cause__ from None
            return
        self._finish(batch, run, on_loop=True)

    def _finish(self, batch: Batch, run: BatchRun, on_loop: bool = False) -> None:
        if self.lost_reason is not None:
            return
        started_s, queue_left = self._batch_started_s, self._queue_left
        self._batch = None
        self.deaths.batch_ended()
        outcome = run.outcome
        failed: list[int] = []
        if isinstance(outcome, Failure):
            failed = self.core.device_failed(batch, outcome.blamed)
        else:
            self.core.device_free()
        # The device thread should not wait for the delivery of the answers.
        advanced = not on_loop and self.core.queue_length > self.placement.largest
        if advanced:
            self._advance_now()
        _trace(batch, run, started_s)
        if isinstance(outcome, Failure):
            for place in failed:
                error = outcome.blamed.get(place, outcome.error)
                queued(batch.slices[place].request).finish(error)
        else:
            self._deliver(batch, outcome)
        oldest_s = min([part.request.arrival_s for part in batch.slices])
        self._on_batch(
            BatchRecord(
                batch.size,
                batch.reason,
                queue_left,
                started_s - oldest_s,
                run.duration_s,
                isinstance(outcome, Failure),
                run.cpu_s,
                on_loop,
            )
        )
        if not advanced:
            self._note_idle()
            if self.core.queue_length:
                self.advance()

    def _deliver(self, batch: Batch, outputs: Sequence[Tensors | ModelError]) -> None:
        for (request, start, stop), part in zip(batch.slices, outputs, strict=True):
            one = queued(request)
            if isinstance(part, ModelError):
                self.core.cancel(one)
                one.finish(part)
            elif not one.done:
                self.rows.completed += stop - start
                if one.add_outputs(start, stop, part):
                    self.deaths.answered(one)


def _trace(batch: Batch, run: BatchRun, started_s: float) -> None:
    """Record the times of a batch for those of its requests that are traced."""
    traces = [trace for part in batch.slices if (trace := queued(part.request).trace) is not None]
    if traces:
        failed, now_s = isinstance(run.outcome, Failure), time.monotonic()
        times = BatchTimes(started_s, now_s, run.duration_s, batch.size, batch.reason.value, failed)
        for trace in traces:
            trace.batches.append(times)
