"""The device thread: run batches beside the event loop, one at a time, and report each."""

import asyncio
import queue
import threading
from collections.abc import Callable

from deployments.batcher.model_runner import BatchRun, DeviceLostError, ModelRunner
from policy.batcher.requests import Batch


class DeviceThread:
    """A thread that drives the device for a batcher on an event loop.

    Parameters
    ----------
    runner : ModelRunner
        Runs the batches.
    on_done : callable
        Called on the event loop after each batch, with the batch and its run.
    on_lost : callable
        Called on the event loop with the reason, once, when the device is lost.
    prepare : callable
        Called in the thread before its first batch.
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
        threading.Thread(target=self._drive, name="sojourn-device", daemon=True).start()

    def start(self, batch: Batch) -> None:
        """Queue `batch` for the thread."""
        self._jobs.put(batch)

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
