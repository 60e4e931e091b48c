"""A stage's workers in this process: in threads, or on the event loop."""

import asyncio
import logging
import queue
import threading
import time

from deployments.errors import StartError
from deployments.pipelines.items import Outcome, StageBatch, WorkerLoss
from deployments.pipelines.workers.interface import Listener
from deployments.pipelines.workers.predictor import Predictor, Recipe, make_predictor
from deployments.pipelines.workers.restarts import FAILED_STARTS, delay_s
from policy.errors import InvalidInputError, SojournError

logger = logging.getLogger("sojourn.pipelines")


def _make(name: str, recipe: Recipe) -> Predictor:
    try:
        return make_predictor(recipe)
    except SojournError as error:
        raise StartError(f"stage {name!r}: a worker did not start: {error}") from error
    except SystemExit as error:
        reason = f"SystemExit: {error}"
        raise StartError(f"stage {name!r}: a worker did not start: {reason}") from error


class LoopWorker:
    """The one worker of a stage that runs on the event loop.

    Parameters
    ----------
    name : str
        The stage's name, for messages.
    recipe : Recipe
    listener : Listener
    """

    def __init__(self, name: str, recipe: Recipe, listener: Listener) -> None:
        self._name, self._recipe = name, recipe
        self._listener = listener
        self._predict: Predictor | None = None

    async def start(self) -> None:
        """Construct the stage's code.

        Raises
        ------
        StartError
            It failed; the message says why.
        """
        self._predict = _make(self._name, self._recipe)
        self._listener.workers_changed(1, None)

    def run(self, batch: StageBatch) -> None:
        """Run a batch now."""
        assert self._predict is not None
        outcome = self._predict(batch.values)
        self._listener.batch_ended(batch, outcome)

    def resize(self, count: int) -> None:
        """Refuse anything but one worker.

        Raises
        ------
        InvalidInputError
            `count` is not 1.
        """
        if count != 1:
            raise InvalidInputError(f"stage {self._name}: place loop has one worker")

    def check(self, now_s: float) -> None:
        """Do nothing: while this stage hangs, nothing else runs either."""

    async def close(self) -> None:
        """Do nothing."""


class _Thread:
    """One worker thread."""

    def __init__(self, pool: "ThreadWorkers") -> None:
        self.batch: StageBatch | None = None
        self.started_s = 0.0
        self.batches: queue.SimpleQueue[StageBatch | None] = queue.SimpleQueue()
        self._pool = pool
        threading.Thread(target=self._work, name=f"sojourn-stage-{pool.name}", daemon=True).start()

    def _work(self) -> None:
        try:
            predict = _make(self._pool.name, self._pool.recipe)
        except BaseException as error:
            if not isinstance(error, StartError):
                reason = f"stage {self._pool.name!r}: a worker did not start: {error!r}"
                error = StartError(reason)
            self._call_soon(error)
            return
        self._call_soon(None)
        while (batch := self.batches.get()) is not None:
            outcome: Outcome
            try:
                outcome = predict(batch.values)
            except BaseException as error:  # SystemExit, most likely; the thread goes on
                outcome = WorkerLoss(f"stage {self._pool.name!r} raised {type(error).__name__}")
            self._call_soon((batch, outcome))

    def _call_soon(self, message: "StartError | tuple[StageBatch, Outcome] | None") -> None:
        try:
            self._pool.loop.call_soon_threadsafe(self._pool.told, self, message)
        except RuntimeError:
            return  # the loop is closed


class ThreadWorkers:
    """The worker threads of one stage, each with code of its own.

    A thread cannot be killed: one that hangs is abandoned and replaced.

    Parameters
    ----------
    name : str
        The stage's name, for messages.
    recipe : Recipe
    workers : int
    hang_after_s : float
        A worker that takes longer for one batch is replaced.
    listener : Listener
    """

    def __init__(
        self, name: str, recipe: Recipe, workers: int, hang_after_s: float, listener: Listener
    ) -> None:
        self.name, self.recipe = name, recipe
        self.loop = asyncio.get_running_loop()
        self._count = workers
        self._hang_after_s = hang_after_s
        self._listener = listener
        self._starting: set[_Thread] = set()
        self._free: list[_Thread] = []
        self._busy: set[_Thread] = set()
        self._started: asyncio.Future[None] | None = None
        self._failed_starts = 0
        self._timers: set[asyncio.TimerHandle] = set()

    async def start(self) -> None:
        """Start all workers; return when each can take a batch.

        Raises
        ------
        StartError
            A worker did not start; the message says why.
        """
        self._started = self.loop.create_future()
        self._start_missing()
        await self._started

    def run(self, batch: StageBatch) -> None:
        """Run a batch on a free worker. The caller knows that there is one."""
        thread = self._free.pop()
        thread.batch, thread.started_s = batch, time.monotonic()
        self._busy.add(thread)
        thread.batches.put(batch)

    def resize(self, count: int) -> None:
        """Start more workers, or let some end after their batches."""
        self._count = count
        self._start_missing()
        self._retire()

    def _start_missing(self) -> None:
        """Start as many workers as there are too few."""
        while len(self._free) + len(self._busy) + len(self._starting) < self._count:
            try:
                self._starting.add(_Thread(self))
            except RuntimeError as error:  # the machine has no room for a thread
                reason = f"stage {self.name!r}: a worker did not start: {error}"
                self._start_failed(StartError(reason))
                return

    def _start_failed(self, error: StartError) -> None:
        """Try again later; during the start of the pipeline, give up."""
        assert self._started is not None
        if not self._started.done():
            self._started.set_exception(error)
            return
        self._failed_starts += 1
        logger.error("%s", error)
        if self._failed_starts >= FAILED_STARTS and not self._running():
            self._listener.workers_changed(0, str(error))

        def start() -> None:
            self._timers.discard(timer)
            self._start_missing()

        timer = self.loop.call_later(delay_s(self._failed_starts), start)
        self._timers.add(timer)

    def _retire(self) -> None:
        while self._free and len(self._free) + len(self._busy) > self._count:
            self._free.pop().batches.put(None)
        self._listener.workers_changed(self._running(), None)

    def _running(self) -> int:
        return min(self._count, len(self._free) + len(self._busy))

    def told(
        self, thread: _Thread, message: "StartError | tuple[StageBatch, Outcome] | None"
    ) -> None:
        """Take what a thread says, on the event loop."""
        if isinstance(message, tuple):
            if thread in self._busy:  # or else it was abandoned
                self._busy.remove(thread)
                self._free.append(thread)
                thread.batch = None
                if len(self._free) + len(self._busy) > self._count:
                    self._retire()
                self._listener.batch_ended(*message)
            return
        self._starting.discard(thread)
        assert self._started is not None
        if message is not None:
            self._start_failed(message)
            return
        self._failed_starts = 0
        self._free.append(thread)
        self._retire()
        if not self._starting and not self._started.done():
            self._started.set_result(None)

    def check(self, now_s: float) -> None:
        """Replace the workers that hang."""
        for thread in [*self._busy]:
            if now_s - thread.started_s <= self._hang_after_s:
                continue
            reason = (
                f"a worker of stage {self.name!r} took more than {self._hang_after_s:g} s "
                "for a batch"
            )
            logger.error("%s; it is replaced", reason)
            self._busy.remove(thread)
            thread.batches.put(None)
            batch = thread.batch
            assert batch is not None
            self._listener.workers_changed(self._running(), None)
            self._start_missing()
            self._listener.batch_ended(batch, WorkerLoss(reason))

    async def close(self) -> None:
        """Let all threads end after their batches."""
        for timer in self._timers:
            timer.cancel()
        for thread in (*self._starting, *self._free, *self._busy):
            thread.batches.put(None)
