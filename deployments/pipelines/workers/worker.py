"""One worker, the workers of a stage, and what they report."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from deployments.pipelines.core.items import BatchFailure, Outcome, StageBatch, WorkerLoss

logger = logging.getLogger("sojourn.pipelines")


class Listener(Protocol):
    """Receives the events of a stage's workers, always on the event loop."""

    def batch_ended(self, batch: StageBatch, outcome: Outcome) -> None:
        """Take the outcome of a batch that was started."""

    def workers_changed(self, workers: int, problem: str | None, taken: int = 0) -> None:
        """Take the number of workers that can run batches; `taken` of them run another's now.

        With no worker left, `problem` is why none can be started, or None while one starts.
        """


class Worker(Protocol):
    """Runs one batch at a time."""

    def run(self, batch: StageBatch) -> Outcome | None:
        """Begin a batch; return its outcome if it is known at once."""


SomeWorker = TypeVar("SomeWorker", bound=Worker)


class PooledWorker(Worker, Protocol):
    """A worker that a `Pool` starts and ends, pinned to `cpus` or not."""

    cpus: list[int] | None

    def start(self) -> None:
        """Begin to start; `Pool.ready` or `Pool.lost` follows. OSError: there is no room."""

    def end(self) -> None:
        """End it at once where that is possible, otherwise after its batch."""

    async def close(self) -> None:
        """End it; leave it some time to end its batch."""


class Pool(Protocol):
    """Receives the events of the workers that it started, on the event loop."""

    name: str
    loop: asyncio.AbstractEventLoop

    def ready(self, worker: PooledWorker) -> None:
        """Take a worker that has started."""

    def ended(self, worker: PooledWorker, outcome: Outcome) -> None:
        """Take the outcome of a worker's batch."""

    def lost(self, worker: PooledWorker, how: str) -> None:
        """Take how a worker died, or why it did not start."""


class Workers(ABC, Generic[SomeWorker]):
    """The workers of one stage: they get batches, and are given up if they hang."""

    def __init__(self, name: str, hang_after_s: float, listener: Listener) -> None:
        self.name = name
        self.listener = listener
        self._hang_after_s = hang_after_s
        #: The batch of each busy worker, and when it began.
        self._busy: dict[SomeWorker, tuple[StageBatch, float]] = {}

    @abstractmethod
    async def start(self) -> None:
        """Return when there are workers that can take a batch, or raise `StartError`."""

    @abstractmethod
    def run(self, batch: StageBatch) -> None:
        """Run a batch on a free worker. The caller knows that there is one."""

    @abstractmethod
    def resize(self, count: int) -> None:
        """Start more workers, or end some after their batches, or raise `InvalidInputError`."""

    @abstractmethod
    async def close(self) -> None:
        """End all workers. Batches that they run are given up."""

    @abstractmethod
    def _worker_free(self, worker: SomeWorker) -> None:
        """Take back a worker that has ended its batch."""

    @abstractmethod
    def _hangs(self, worker: SomeWorker, how: str) -> None:
        """Give up a worker."""

    def check(self, now_s: float) -> None:
        """Give up the workers that hang; called several times a second."""
        for worker, (_, since_s) in [*self._busy.items()]:
            if now_s - since_s > self._hang_after_s:
                self._hangs(worker, f"took more than {self._hang_after_s:g} s for a batch")

    def ended(self, worker: SomeWorker, outcome: Outcome) -> None:
        """Take the outcome of a worker's batch, unless the worker was given up."""
        if worker in self._busy:
            batch, _ = self._busy.pop(worker)
            self._worker_free(worker)
            self.listener.batch_ended(batch, outcome)

    def _begin(self, worker: SomeWorker, batch: StageBatch) -> None:
        self._busy[worker] = batch, time.monotonic()
        outcome: Outcome | None
        try:
            outcome = worker.run(batch)
        except Exception as error:
            # Otherwise its requests would wait for ever, and its worker with them.
            logger.exception("stage %r: a batch could not be run", self.name)
            outcome = BatchFailure(error, whole=True)
        if outcome is not None:
            self.ended(worker, outcome)

    def _lose(self, worker: SomeWorker, reason: str) -> None:
        """Report that a worker is gone, and what became of its batch."""
        job = self._busy.pop(worker, None)
        self._changed()
        if job is not None:
            self.listener.batch_ended(job[0], WorkerLoss(reason))

    @abstractmethod
    def _changed(self) -> None:
        """Report the number of workers."""
