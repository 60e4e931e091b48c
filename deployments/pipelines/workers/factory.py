"""The workers of a stage, by where it runs: Ray replicas, processes, threads, or the event loop."""

from typing import Any

import cloudpickle

from deployments.errors import StartError
from deployments.pipelines.core.steps import AVAILABLE_CPUS, Stage
from deployments.pipelines.workers.in_process import LoopWorker, ThreadWorker
from deployments.pipelines.workers.pool import WorkerPool
from deployments.pipelines.workers.predictor import recipe_of
from deployments.pipelines.workers.processes import ProcessWorker
from deployments.pipelines.workers.replicas import ReplicaAccess, ReplicaWorkers
from deployments.pipelines.workers.worker import OnChange, OnEnded, PooledWorker, Workers


def make_workers(
    stage: Stage, on_ended: OnEnded, on_change: OnChange, replicas: ReplicaAccess | None = None
) -> Workers[Any]:
    """Return the workers of a stage, not yet started.

    Without Ray replicas, stages that should have them run in processes. Raises `StartError` if a
    stage's code cannot be sent to a process.
    """
    if replicas is not None:
        return ReplicaWorkers(stage, on_ended, on_change, replicas)
    recipe, pickled = recipe_of(stage), b""
    if stage.place not in ("loop", "thread"):
        try:
            # By value if necessary: a class of a notebook, or of the running script.
            pickled = cloudpickle.dumps(recipe)
        except Exception as error:
            reason = f"stage {stage.name!r}: cannot be sent to a process: {error}"
            raise StartError(reason) from error

    def make(pool: WorkerPool, cpus: list[int]) -> PooledWorker:
        if stage.place == "loop":
            return LoopWorker(pool, recipe, cpus)
        if stage.place == "thread":
            return ThreadWorker(pool, recipe, cpus)
        return ProcessWorker(pool, pickled, cpus)

    cpus = [AVAILABLE_CPUS] if stage.cpus is None else [[cpu] for cpu in stage.cpus]
    return WorkerPool(stage, on_ended, on_change, make, cpus)
