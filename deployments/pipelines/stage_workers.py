"""The workers of a pipeline's stages, and corrections of their profiles."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from deployments.control.latency_refit import LatencyRefit
from deployments.control.worker_process import WorkerProcess
from deployments.pipelines.core.items import BatchFailure, Outcome, StageBatch, WorkerLoss
from deployments.pipelines.core.pipeline_core import PipelineCore
from deployments.pipelines.core.steps import Stage
from deployments.pipelines.workers.factory import make_workers
from deployments.pipelines.workers.replicas import ReplicaAccess
from deployments.pipelines.workers.worker import Workers
from policy.errors import InvalidInputError, SojournError
from policy.objective import Objective, Weights

logger = logging.getLogger("sojourn.pipelines")

#: Interval of the checks for hanging workers, and how many there are for one of the profiles.
_CHECK_S, _CHECKS_PER_REFIT = 0.2, 10
#: Time limit of solving a policy table.
_SOLVE_S = 600.0


class StageWorkers:
    """The workers of all stages, and the upkeep of their profiles and policies."""

    def __init__(
        self,
        core: PipelineCore,
        stages: Sequence[Stage],
        on_batch_ended: Callable[[int, StageBatch, Outcome], None],
        on_change: Callable[[], None],
        replicas: Mapping[str, ReplicaAccess],
    ) -> None:
        self.stages = [*stages]
        self._core = core
        self._on_batch_ended, self._on_change = on_batch_ended, on_change
        self._replicas = replicas
        self._workers: list[Workers[Any]] = []
        self._objectives: dict[int, Objective] = {}
        self._refits: dict[int, LatencyRefit] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._core.refresh(time.monotonic())
        for number, stage in enumerate(self.stages):
            if (profile := stage.batch_profile) is not None:
                self._refits[number] = LatencyRefit(profile)
            self._workers.append(
                make_workers(
                    stage,
                    partial(self.batch_ended, number),
                    partial(self.workers_changed, number),
                    self._replicas.get(stage.name),
                )
            )
        starts = [asyncio.create_task(workers.start()) for workers in self._workers]
        try:
            await asyncio.gather(*starts)
        finally:
            for start in starts:
                start.cancel()
            await asyncio.wait(starts)
        self._spawn(self._check_forever())
        for number in range(len(self.stages)):
            self._solve_soon(number)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        # A solver that is cancelled ends its process.
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(workers.close() for workers in self._workers))

    def run(self, number: int, batch: StageBatch) -> None:
        self._workers[number].run(batch)

    def resize(self, name: str, workers: int) -> None:
        numbers = {stage.name: number for number, stage in enumerate(self.stages)}
        if name not in numbers:
            raise InvalidInputError(f"stage {name!r}: the stages are {', '.join(numbers)}")
        stage = self.stages[numbers[name]]
        if stage.cpus is not None and workers > len(stage.cpus):
            raise InvalidInputError(f"stage {name}: its cpus are for {len(stage.cpus)} workers")
        replace(stage, workers=workers, cpus=None)  # it raises if the number is wrong
        self._workers[numbers[name]].resize(workers)

    def use_objective(self, name: str, objective: Objective) -> None:
        (number,) = (at for at, stage in enumerate(self.stages) if stage.name == name)
        if self._objectives.get(number, Weights()) != objective:
            self._objectives[number] = objective
            self._solve_soon(number)

    def batch_ended(self, number: int, batch: StageBatch, outcome: Outcome) -> None:
        refit = self._refits.get(number)
        if refit is not None and not isinstance(outcome, BatchFailure | WorkerLoss):
            refit.observe(len(batch.items), 1e3 * (time.monotonic() - batch.started_s))
        self._on_batch_ended(number, batch, outcome)

    def workers_changed(self, number: int, workers: int, problem: str | None) -> None:
        stage = self._core.stages[number]
        stage.workers = workers
        if problem is not None:
            self._core.lose_stage(number, problem)
        elif workers:
            stage.lost = None
        self._core.touch(number)
        self._on_change()

    def refit(self) -> list[str]:
        """Correct profiles that two calls in a row find wrong; return their stages."""
        corrected = []
        for number, refit in self._refits.items():
            profile = refit.revise()
            if profile is not None:
                stage = self.stages[number]
                corrected.append(stage.name)
                logger.info("stage %s: its profile was corrected by what batches took", stage.name)
                self.stages[number] = replace(stage, profile=profile)
                self._core.stages[number].state_latency(profile.latency_ms.tolist())
                self._solve_soon(number)
        if corrected:
            self._core.refresh(time.monotonic())
        return corrected

    async def _check_forever(self) -> None:
        for number in itertools.count(1):
            await asyncio.sleep(_CHECK_S)
            now_s = time.monotonic()
            for stage, workers in zip(self.stages, self._workers, strict=True):
                try:
                    workers.check(now_s)
                except Exception:
                    # A failure must affect neither the other stages nor the next check.
                    logger.exception("stage %r: its workers could not be checked", stage.name)
            self._core.refresh(now_s)
            if number % _CHECKS_PER_REFIT == 0:
                try:
                    self.refit()
                except Exception:
                    logger.exception("the profiles could not be compared with the latest batches")

    def _solve_soon(self, number: int) -> None:
        if self.stages[number].policy == "smdp":
            self._spawn(self._solve(number, self.stages[number]))

    async def _solve(self, number: int, stage: Stage) -> None:
        solver = WorkerProcess(f"the solver of stage {stage.name!r}")
        function, objective = "policy.tables.solving:solve_table", self._objectives.get(number)
        try:
            table = await solver.ask(
                function, stage.batch_profile, objective or Weights(), time_limit_s=_SOLVE_S
            )
        except SojournError:
            logger.exception("stage %r keeps its present policy: no table was found", stage.name)
            return
        finally:
            solver.close()
        if self._objectives.get(number) is not objective:
            return  # there is another one by now, which is being solved
        self._core.stages[number].use(table)
        self._core.touch(number)
        self._on_change()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
