"""The threads that run batches, the device's or the event loop's, and the timer that wakes it."""

import asyncio
import logging
import math
import queue
import resource
import sys
import threading
import time
from collections.abc import Callable, Container

from deployments.batcher.model_runner import BatchRun, DeviceLostError, ModelRunner
from deployments.batcher.placement import BatchPlacement
from policy.batcher.requests import Batch

logger = logging.getLogger("sojourn.batcher")


class WakeTimer:
    """One timer, which wakes no later than it is set for.

    A later time does not move it: whoever is woken too early sets it again. So a time that changes
    with every request costs nothing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._at_s = math.inf

    def set(self, at_s: float | None) -> None:
        """Wake at `at_s`, by `time.monotonic`, or earlier; None: there is no need to."""
        if at_s is None or at_s >= self._at_s:
            return
        self.cancel()
        self._at_s = at_s
        self._handle = self._loop.call_later(at_s - time.monotonic(), self._wake)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle, self._at_s = None, math.inf

    def _wake(self) -> None:
        self._handle, self._at_s = None, math.inf
        self._callback()


class DeviceThread:
    """A thread that drives the device for a batcher on an event loop.

    `on_done` and `on_lost` are called on the event loop, after each batch and once when the device
    is lost; `prepare` in the thread, before its first batch.
    """

    def __init__(
        self,
        runner: ModelRunner,
        on_done: Callable[[Batch, BatchRun], None],
        on_lost: Callable[[str], None],
        prepare: Callable[[], None],
    ) -> None:
        self._runner = runner
        self._on_done = on_done
        self._on_lost = on_lost
        self._prepare = prepare
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._loop_thread = threading.current_thread()
        self._thread = threading.Thread(target=self._drive, name="sojourn-device", daemon=True)
        self._thread.start()

    def start(self, batch: Batch) -> None:
        self._jobs.put(batch)

    def current_line(self, modules: Container[object]) -> str:
        """Return the innermost file and line of these modules that run; "" if none.

        That is on this thread, or on that of the event loop.
        """
        frames = sys._current_frames()
        for thread in (self._thread, self._loop_thread):
            frame = frames.get(thread.ident or 0)
            while frame is not None and frame.f_globals.get("__name__") not in modules:
                frame = frame.f_back
            if frame is not None:
                return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        return ""

    def close(self) -> None:
        """End the thread after its current batch."""
        self._jobs.put(None)

    def _drive(self) -> None:
        self._prepare()
        while (batch := self._jobs.get()) is not None:
            try:
                run = self._runner.run(batch)
            except DeviceLostError as error:
                self._call_soon(self._on_lost, str(error))
                return
            if not self._call_soon(self._on_done, batch, run):
                return

    def _call_soon(self, callback: Callable[..., None], *arguments: object) -> bool:
        """Schedule `callback` on the event loop; return False if the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            return False
        return True


def run_on_loop(runner: ModelRunner, placement: BatchPlacement, batch: Batch) -> BatchRun:
    """Run a batch on this thread, and let the placement know how that went.

    `DeviceLostError`: the device can answer no batch any more.
    """
    switches = _voluntary_switches()
    run = runner.run(batch)
    goes_back = placement.observe(
        batch.size,
        run.duration_s,
        run.cpu_s,
        waited=_voluntary_switches() > switches,
        now_s=time.monotonic(),
    )
    if goes_back:
        logger.warning(
            "a batch of %d kept the event loop for %.1f ms; such batches go to the device thread",
            batch.size,
            1e3 * run.duration_s,
        )
    return run


def _voluntary_switches() -> int:
    """Return how often this thread has waited for something, and so given up its CPU."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
