"""The stages of a running pipeline are planned, and resized once a second."""

import asyncio
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autoscaler.reports import curve_to_floats
from autoscaler.worker import WorkerError
from deployments.control.worker_process import WorkerProcess
from deployments.pipelines.core.steps import Step
from deployments.pipelines.pipeline import Pipeline
from deployments.pipelines.planning.division_table import DivisionTable
from deployments.pipelines.planning.stage_autoscaler import PipelineScaler
from deployments.pipelines.serving.config import PipelineConfig
from deployments.pipelines.serving.planning import without_code
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

logger = logging.getLogger("sojourn.pipelines")

#: Interval of the decisions, and least time between plans.
PERIOD_S, _PLAN_AGAIN_S = 1.0, 30.0
#: Time limit of a plan of all rates.
_PLAN_S = 600.0
#: More or fewer items of a request by this factor, and by this number, call for another plan.
_OTHER, _FEW_ITEMS = 1.25, 0.05


class PipelineAutoscaler:
    """Plans the workers of the stages, and resizes them as their autoscalers decide.

    Ray resizes the stages whose workers are Ray replicas, by `replica_needs`. Before the first plan
    `table` is None and nothing is decided.
    """

    def __init__(self, pipeline: Pipeline, steps: Sequence[Step], config: PipelineConfig) -> None:
        assert config.autoscaling is not None
        self._pipeline, self._steps, self._config = pipeline, steps, config
        self._settings, self._most = config.autoscaling.settings(), config.autoscaling.max_workers
        self.table: DivisionTable | None = None
        self.sla: ServiceLevelObjective | None = None
        self.scaler = PipelineScaler(pipeline.core, self._settings, config.max_replicas())
        self._planner = WorkerProcess("the planner of the pipeline")
        self._planned: tuple[Mapping[str, Profile | None], Mapping[str, float]] = {}, {}
        #: Whether the newest plan was to count refusals; None if its process failed.
        self._counts_refusals: bool | None = None
        self._planned_s = self._created_s = self._started_s = time.monotonic()
        # Forecasts go by the time of day, and a wall clock may be set back.
        self._wall_s = time.time() - time.monotonic()
        self._ordered: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._planning: asyncio.Task[None] | None = None

    async def plan(self, sla: ServiceLevelObjective) -> None:
        """Plan for an SLA; `InvalidInputError` or `InfeasibleError` if no workers keep it.

        Counting refusals would take many seconds, so only the next plan does, in the background.
        """
        if self._planning is not None:
            self._planning.cancel()  # it is for the SLA until now
        self._planned_s = math.inf  # no other plan is made meanwhile
        try:
            await self._plan(sla, counts_refusals=False)
        finally:
            self._planned_s = -math.inf

    async def _plan(self, sla: ServiceLevelObjective, counts_refusals: bool) -> None:
        stages = {stage.name: stage for stage in self._pipeline.stages}
        profiles = {name: stage.batch_profile for name, stage in stages.items()}
        self._planned = profiles, self._pipeline.core.backlog.items_per_request()
        self._counts_refusals = counts_refusals
        measured = self._pipeline.core.backlog.measured_steps()
        steps = without_code([*self._steps], stages, measured)
        try:
            self.table = await self._solve(steps, sla, counts_refusals)
        except InfeasibleError as error:
            if not counts_refusals:
                raise
            logger.warning("%s; the plan counts no refusals", error)
            self.table = await self._solve(steps, sla, counts_refusals=False)
        self.sla = sla
        self.scaler.use(self.table, sla)

    async def _solve(
        self, steps: Sequence[Step], sla: ServiceLevelObjective, counts_refusals: bool
    ) -> DivisionTable:
        config = self._config
        arguments = steps, sla, self._most, config.worker_costs()
        limits: Any = {
            "max_replicas": config.max_replicas(),
            "counts_refusals": counts_refusals,
        }
        if self.table is None:  # the worker process has a low priority, and this is urgent
            from deployments.pipelines.planning.scaling import solve_divisions  # it loads numba

            return await asyncio.to_thread(solve_divisions, *arguments, **limits)
        function = "deployments.pipelines.planning.scaling:solve_divisions"
        found: DivisionTable = await self._planner.ask(
            function, *arguments, **limits, time_limit_s=_PLAN_S
        )
        return found

    def start(self) -> None:
        self._ordered = {stage.name: stage.workers for stage in self._pipeline.stages}
        self._started_s = time.monotonic()
        self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        self._planner.close()
        for task in (self._task, self._planning):
            if task is not None:
                task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                self.step(time.monotonic())
                if self._is_outdated():
                    self._planning = asyncio.create_task(self._plan_again())
            except Exception:
                logger.exception("the stages could not be scaled; trying again")

    async def _plan_again(self) -> None:
        assert self.sla is not None
        self._planned_s = time.monotonic()
        try:
            await self._plan(self.sla, counts_refusals=self._refuses)
        except Exception as error:
            if isinstance(error, WorkerError):
                self._counts_refusals = None  # it may do better next time
            logger.exception("the stages could not be planned again; the plan in force stays")

    def step(self, now_s: float) -> None:
        if self.table is None:
            return
        for stage, workers in self.scaler.decide(self._wall_s + now_s).items():
            if workers != self._ordered[stage]:
                logger.info("stage %s: %s", stage, self.scaler.stages[stage].log.newest)
                if stage not in self._pipeline.replicas:
                    self._pipeline.resize(stage, workers)
                self._ordered[stage] = workers
            self._pipeline.use_objective(stage, self.scaler.stages[stage].objective)

    @property
    def _refuses(self) -> bool:
        return self._pipeline.sla is not None

    def _is_outdated(self) -> bool:
        is_planning = self._planning is not None and not self._planning.done()
        if self.table is None or is_planning or time.monotonic() < self._planned_s + _PLAN_AGAIN_S:
            return False
        if self._counts_refusals is not self._refuses:
            return True
        profiles, before = self._planned
        items = self._pipeline.core.backlog.items_per_request()
        if any(stage.batch_profile is not profiles[stage.name] for stage in self._pipeline.stages):
            return True
        pairs = [sorted((items[name], before[name])) for name in items]
        return any(more > _OTHER * fewer + _FEW_ITEMS for fewer, more in pairs)

    def replica_needs(self) -> dict[str, float]:
        """Return the fractional number of replicas that the load needs, by deployed stage."""
        if self.table is None:
            return {}
        return {name: self.scaler.stages[name].share_of_workers for name in self._pipeline.replicas}

    def report(self) -> dict[str, float]:
        """Return this replica's report; none where more replicas of the pipeline carry no more.

        Its batches are what it answers within the SLA's response time.
        """
        core, table, sla = self._pipeline.core, self.table, self.sla
        if table is None or sla is None or table.curve is None:
            return {}
        return {
            "offered_total": core.offered,
            "refused_total": core.refused,
            "queue_length": len(core.open),
            "full_batch_size": 1e-3 * sla.response_time_ms * table.capacity_per_s,
            "full_batch_ms": sla.response_time_ms,
            "sla_response_time_ms": sla.response_time_ms,
            "sla_percentile": sla.percentile,
            "start_time_s": self._started_s - self._created_s,
            "answered_total": core.completed + core.late,
            "late_total": core.late,
            "counted_s": time.monotonic() - self._started_s,
            # Standbys are of the stages.
            **replace(self._settings, standbys=0).to_floats(),
            **curve_to_floats(table.curve),
        }
