"""A stage's workers in this process: threads, and the event loop."""

import contextlib
import os
import queue
import threading
from collections.abc import Callable

from deployments.pipelines.core.items import Outcome, StageBatch, WorkerLoss
from deployments.pipelines.workers.pool import WorkerPool
from deployments.pipelines.workers.predictor import Predictor, Recipe, construct


class LoopWorker:
    """The only worker of a stage on the event loop; if it hangs, everything hangs."""

    def __init__(self, pool: WorkerPool, recipe: Recipe, cpus: list[int]) -> None:
        self._pool, self._recipe, self.cpus = pool, recipe, cpus
        self._predict: Predictor | None = None

    def start(self) -> None:
        self._predict, problem = construct(self._recipe)
        if problem is None:
            self._pool.ready(self)
        else:
            self._pool.lost(self, problem)

    def run(self, batch: StageBatch) -> Outcome | None:
        assert self._predict is not None
        return self._predict(batch.values)

    def end(self) -> None: ...

    async def close(self) -> None: ...


class ThreadWorker:
    """A worker thread with its own code.

    A thread cannot be killed: a hanging one is abandoned, and ends after its batch.
    """

    def __init__(self, pool: WorkerPool, recipe: Recipe, cpus: list[int]) -> None:
        self._pool, self._recipe, self.cpus = pool, recipe, cpus
        self._batches: queue.SimpleQueue[StageBatch | None] = queue.SimpleQueue()

    def start(self) -> None:
        name = f"sojourn-stage-{self._pool.name}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def run(self, batch: StageBatch) -> Outcome | None:
        self._batches.put(batch)
        return None

    def end(self) -> None:
        self._batches.put(None)

    async def close(self) -> None:
        self.end()

    def _work(self) -> None:
        pool = self._pool
        os.sched_setaffinity(0, self.cpus)  # of this thread
        predict, problem = construct(self._recipe)
        if predict is None:
            self._call_soon(pool.lost, self, str(problem))
            return
        self._call_soon(pool.ready, self)
        while (batch := self._batches.get()) is not None:
            outcome: Outcome
            try:
                outcome = predict(batch.values)
            except BaseException as error:  # SystemExit, most likely; the thread continues
                outcome = WorkerLoss(f"stage {pool.name!r} raised {type(error).__name__}")
            self._call_soon(pool.ended, self, outcome)

    def _call_soon(self, report: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._pool.loop.call_soon_threadsafe(report, *arguments)
