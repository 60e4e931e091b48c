"""The autoscalers of a pipeline's stages: those of deployments, on any clock.

The workers of a stage share one queue, so their number follows from the plans of the pipeline
(`planning.scaling`), and not from RAND, which is for random routing.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from autoscaler.controller import Autoscaler
from autoscaler.decision import Decision, DecisionLog, FleetState
from autoscaler.reports import ReplicaReport
from autoscaler.settings import AutoscalerSettings
from deployments.pipelines.core.pipeline_core import PipelineCore
from deployments.pipelines.core.stage_core import StageCore
from deployments.pipelines.planning.division_table import DivisionTable
from policy.objective import Objective, ServiceLevelObjective


class StageAutoscaler:
    """Decides on the workers of one stage.

    Between decisions the `offered` items are added up that the stage has or would have, and the
    `missed`, refused because of it at the pipeline's entry or late at it.
    """

    def __init__(self, stage: StageCore, settings: AutoscalerSettings) -> None:
        self.log = DecisionLog()
        self.most = 1
        self.offered = self.missed = 0.0
        self._stage, self._settings = stage, settings
        self.autoscaler = Autoscaler(settings)
        self._decision = Decision(0, "nothing is known")
        #: When the workers that have not started yet were ordered.
        self._ordered_s: deque[float] = deque()
        self._ready = 0
        self._start_time_s = self._offered_total = self._missed_total = 0.0
        self._since_s: float | None = None

    def use(self, table: DivisionTable, sla: ServiceLevelObjective, most: int) -> None:
        self._table, self._sla, self.most = table, sla, most
        self._pool = table.pool(self._stage.name, sla.late_share_allowed)
        self.autoscaler.size_by(self._pool)

    @property
    def workers(self) -> int:
        """The workers to have, standbys included, which take batches like the others."""
        return self._decision.replicas + self._decision.standbys or max(1, self._stage.workers)

    @property
    def budget_ms(self) -> float:
        return self._table.budget_ms(self._stage.name, self._decision.demand_per_s or 0.0)

    @property
    def objective(self) -> Objective:
        return self._table.objective(self._stage.name, self._decision.demand_per_s or 0.0)

    @property
    def share_of_workers(self) -> float:
        """The fraction of them that the load needs, unless more are kept for a while."""
        decision = self._decision
        if decision.demand_per_s is None or decision.replicas != decision.required_replicas:
            return float(self.workers)
        share = self._pool.share_of_workers(decision.demand_per_s)
        return min(share, decision.replicas) + decision.standbys

    def decide(self, now_s: float) -> None:
        stage, last = self._stage, self._decision
        if not last.replicas:
            last = Decision(min(self.workers, self.most), "the workers at the start")
        for _ in range(min(stage.workers - self._ready, len(self._ordered_s))):
            self._start_time_s = now_s - self._ordered_s.popleft()
        self._ready = stage.workers
        if stage.workers:
            self.autoscaler.observe([self._report(now_s)], now_s, stage.workers)
        standbys = min(last.standbys, max(0, stage.workers - last.replicas))
        fleet = FleetState(
            current_replicas=last.replicas,
            min_replicas=1,
            max_replicas=self.most,
            ready_replicas=stage.workers - standbys,
            current_standbys=last.standbys,
            ready_standbys=standbys,
        )
        self._decision = self.autoscaler.decide(now_s, fleet)
        self.log.add(now_s, last.replicas, self._decision)
        missing = max(0, self.workers - stage.workers)
        while len(self._ordered_s) > missing:
            self._ordered_s.pop()
        self._ordered_s.extend([now_s] * (missing - len(self._ordered_s)))

    def _report(self, now_s: float) -> ReplicaReport:
        """Return the report of one worker, which stands for all: they take from one queue."""
        stage, workers = self._stage, self._stage.workers
        size, full_batch_ms = stage.full_batch
        if self._since_s is None:
            self._since_s = now_s
        self._offered_total += self.offered / workers
        self._missed_total = min(self._offered_total, self._missed_total + self.missed / workers)
        self.offered = self.missed = 0.0
        return ReplicaReport(
            stage.name,
            now_s,
            offered_total=self._offered_total,
            refused_total=self._missed_total,
            queue_length=stage.waiting / workers,
            full_batch_size=size,
            full_batch_ms=full_batch_ms,
            sla_response_time_ms=self.budget_ms,
            sla_percentile=self._sla.percentile,
            start_time_s=self._start_time_s,
            settings=self._settings,
            counted_s=now_s - self._since_s,
        )


class PipelineScaler:
    """Decides on the workers of all stages; call `use` first, and then `decide` once a second."""

    def __init__(
        self,
        core: PipelineCore,
        settings: AutoscalerSettings,
        max_replicas: Mapping[str, int] | None = None,
    ) -> None:
        # The pipeline refuses, and nobody tries another worker.
        own = replace(settings, retries=0)
        self.stages = {stage.name: StageAutoscaler(stage, own) for stage in core.stages}
        self._core, self._max_replicas = core, max_replicas or {}
        self._offered = core.offered
        self._missed = [stage.missed for stage in core.stages]

    def use(self, table: DivisionTable, sla: ServiceLevelObjective) -> None:
        """Size by another table from now on; what is known of the load stays."""
        self._table = table
        for name, stage in self.stages.items():
            most = self._max_replicas.get(name, table.divisions[-1][name])
            stage.use(table, sla, most)

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Copy what was learned of the load, and return a function that packs it."""
        packs = {name: stage.autoscaler.snapshot() for name, stage in self.stages.items()}
        return lambda: {name: pack() for name, pack in packs.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what a snapshot packed, or raise `InvalidInputError`."""
        for name in self.stages.keys() & state.keys():
            self.stages[name].autoscaler.load_state(state[name])

    def decide(self, now_s: float) -> dict[str, int]:
        core = self._core
        offered, self._offered = core.offered - self._offered, core.offered
        items_per_request = core.backlog.items_per_request()
        for number, (name, stage) in enumerate(self.stages.items()):
            missed = core.stages[number].missed
            items = items_per_request[name]
            stage.offered += items * offered
            stage.missed += items * (missed - self._missed[number])
            self._missed[number] = missed
            stage.decide(now_s)
        return {name: stage.workers for name, stage in self.stages.items()}
