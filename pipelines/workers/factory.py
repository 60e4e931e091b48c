"""The workers that a stage asks for."""

from pipelines.steps import Stage
from pipelines.workers.in_process import LoopWorker, ThreadWorkers
from pipelines.workers.interface import Listener, Workers
from pipelines.workers.predictor import Recipe
from pipelines.workers.processes import ProcessWorkers


def make_workers(stage: Stage, listener: Listener) -> Workers:
    """Return the workers of a stage, not yet started.

    Raises
    ------
    StartError
        The stage's code cannot be sent to a process.
    """
    recipe = Recipe(stage.code, dict(stage.options), stage.device, stage.batch_size is not None)
    if stage.place == "loop":
        return LoopWorker(stage.name, recipe, listener)
    if stage.place == "thread":
        return ThreadWorkers(stage.name, recipe, stage.workers, stage.hang_after_s, listener)
    cpus = [None] * stage.workers if stage.cpus is None else [[cpu] for cpu in stage.cpus]
    return ProcessWorkers(stage.name, recipe, [*cpus], stage.hang_after_s, listener)
