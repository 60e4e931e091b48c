"""The workers of a stage, by where it runs: in threads, on the event loop, and elsewhere."""

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from deployments.pipelines.core.items import Outcome, StageBatch, WorkerLoss
from deployments.pipelines.core.steps import Stage
from deployments.pipelines.workers.pool import Kind, WorkerPool
from deployments.pipelines.workers.predictor import Predictor, construct
from deployments.pipelines.workers.processes import ProcessWorker
from deployments.pipelines.workers.replicas import ReplicaAccess, ReplicaWorkers
from deployments.pipelines.workers.worker import OnChange, OnEnded, Workers


def make_workers(
    stage: Stage, on_ended: OnEnded, on_change: OnChange, replicas: ReplicaAccess | None = None
) -> Workers[Any]:
    if replicas is not None:
        return ReplicaWorkers(stage, on_ended, on_change, replicas)
    kinds: dict[str, Kind] = {"loop": LoopWorker, "thread": ThreadWorker}
    return WorkerPool(stage, on_ended, on_change, kinds.get(stage.place, ProcessWorker))


class LoopWorker:
    """The only worker of a stage on the event loop; if it hangs, everything hangs."""

    def __init__(self, pool: WorkerPool, stage: Stage, cpus: list[int]) -> None:
        self._pool, self._stage, self.cpus = pool, stage, cpus
        self._predict: Predictor | None = None

    def start(self) -> None:
        self._predict, problem = construct(self._stage)
        if problem is None:
            self._pool.ready(self)
        else:
            self._pool.lost(self, problem)

    def run(self, batch: StageBatch) -> Outcome | None:
        assert self._predict is not None
        try:
            return self._predict(batch.values)
        except SystemExit:
            return WorkerLoss(f"stage {self._pool.name!r} raised SystemExit")

    def end(self) -> None: ...

    async def close(self) -> None: ...


class ThreadWorker:
    """A worker thread with its own code; a hanging one is abandoned, and ends after its batch."""

    def __init__(self, pool: WorkerPool, stage: Stage, cpus: list[int]) -> None:
        self._pool, self._stage, self.cpus = pool, stage, cpus
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
        predict, problem = construct(self._stage)
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
