"""The workers that a stage asks for."""

from deployments.pipelines.steps import Stage
from deployments.pipelines.workers.in_process import LoopWorker, ThreadWorkers
from deployments.pipelines.workers.interface import Listener, Workers
from deployments.pipelines.workers.predictor import Recipe
from deployments.pipelines.workers.processes import ProcessWorkers
from deployments.pipelines.workers.replicas import ReplicaAccess, ReplicaWorkers


def recipe_of(stage: Stage) -> Recipe:
    """Return what each worker of a stage constructs."""
    return Recipe(stage.code, dict(stage.options), stage.device, stage.batch_size is not None)


def make_workers(stage: Stage, listener: Listener, replicas: ReplicaAccess | None) -> Workers:
    """Return the workers of a stage, not yet started.

    Parameters
    ----------
    stage : Stage
    listener : Listener
    replicas : ReplicaAccess or None
        If the stage has Ray replicas. Otherwise those that it should have are processes.

    Raises
    ------
    StartError
        The stage's code cannot be sent to a process.
    """
    if replicas is not None:
        return ReplicaWorkers(stage.name, replicas, stage.workers, stage.hang_after_s, listener)
    recipe = recipe_of(stage)
    if stage.place == "loop":
        return LoopWorker(stage.name, recipe, listener)
    if stage.place == "thread":
        return ThreadWorkers(stage.name, recipe, stage.workers, stage.hang_after_s, listener)
    cpus = [None] * stage.workers if stage.cpus is None else [[cpu] for cpu in stage.cpus]
    return ProcessWorkers(stage.name, recipe, [*cpus], stage.hang_after_s, listener)
