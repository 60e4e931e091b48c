"""Interfaces of workers, and of a stage's workers."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from deployments.pipelines.core.items import BatchFailure, Outcome, StageBatch, WorkerLoss
from deployments.pipelines.core.steps import Stage

logger = logging.getLogger("sojourn.pipelines")


class Worker(Protocol):
    def run(self, batch: StageBatch) -> Outcome | None:
        """Start a batch; return its outcome if it is known at once."""


OnEnded = Callable[[StageBatch, Outcome], None]
OnChange = Callable[[int, str | None], None]
"""Handles a new number of usable workers, and why none can be started, if so."""

SomeWorker = TypeVar("SomeWorker", bound=Worker)


class PooledWorker(Worker, Protocol):
    cpus: list[int]

    def start(self) -> None:
        """Start; `WorkerPool.ready` or `WorkerPool.lost` follows. OSError without room."""

    def end(self) -> None:
        """End at once if possible, otherwise after the batch."""

    async def close(self) -> None: ...


class Workers(ABC, Generic[SomeWorker]):
    """The workers of one stage: they run batches, and are abandoned if they hang."""

    def __init__(self, stage: Stage, on_ended: OnEnded, on_change: OnChange) -> None:
        self.name = stage.name
        self._on_ended, self._on_change = on_ended, on_change
        self._hang_after_s = stage.hang_after_s
        self.hang = f"took more than {stage.hang_after_s:g} s for a batch"
        #: The batch of each busy worker, and its start time.
        self._busy: dict[SomeWorker, tuple[StageBatch, float]] = {}

    @abstractmethod
    async def start(self) -> None:
        """Wait until workers can take a batch, or raise `StartError`."""

    @abstractmethod
    def run(self, batch: StageBatch) -> None: ...

    @abstractmethod
    def resize(self, count: int) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def _worker_free(self, worker: SomeWorker) -> None: ...

    @abstractmethod
    def lost(self, worker: SomeWorker, how: str) -> None:
        """Use a worker no more; its batch is lost."""

    def check(self, now_s: float) -> None:
        """Abandon workers that hang; called several times a second."""
        for worker, (_, since_s) in [*self._busy.items()]:
            if now_s - since_s > self._hang_after_s:
                self.lost(worker, self.hang)

    def ended(self, worker: SomeWorker, outcome: Outcome) -> None:
        """Handle the outcome of a worker's batch, unless the worker was abandoned."""
        if worker in self._busy:
            batch, _ = self._busy.pop(worker)
            self._worker_free(worker)
            self._on_ended(batch, outcome)

    def _begin(self, worker: SomeWorker, batch: StageBatch) -> None:
        self._busy[worker] = batch, time.monotonic()
        outcome: Outcome | None
        try:
            outcome = worker.run(batch)
        except Exception as error:
            # Otherwise its requests and its worker would wait for ever.
            logger.exception("stage %r: a batch could not be run", self.name)
            outcome = BatchFailure(error, whole=True)
        if outcome is not None:
            self.ended(worker, outcome)

    def _lose(self, worker: SomeWorker, reason: str) -> None:
        job = self._busy.pop(worker, None)
        self._changed()
        if job is not None:
            self._on_ended(job[0], WorkerLoss(reason))

    @abstractmethod
    def _changed(self) -> None: ...
