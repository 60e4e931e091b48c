"""Workers of each stage by rate, solved in advance, and the times to change them.

The load is measured at the pipeline's entry. All stages are sized from it together, so a shortage
in one stage causes no surplus in the others.
"""

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from autoscaler.scale_down import ScaleDownStabilizer
from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.pipeline_core import PipelineCore
from deployments.pipelines.core.steps import Step
from deployments.pipelines.planning.sizing import plan_pipeline, stage_rates
from deployments.pipelines.planning.tandem import profile_of
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective

# Ratio of successive rates of a table.
_STEP = 1.15
# The first rate, as a share of the capacity of one worker in each stage.
_FIRST_SHARE = 0.1
_REQUESTS = 50_000

#: Interval of decisions.
PERIOD_S = 1.0
#: Workers are sized for the measured rate times this.
MARGIN = 1.2
# The measured items per request are averaged over about this many requests.
_RATIO_REQUESTS = 200.0


@dataclass(frozen=True)
class DivisionTable:
    """The workers of each stage by the rate of the requests.

    Entry ``i`` of `divisions` carries every rate up to ``rates_per_s[i]``, which increase; the last
    holds for higher rates, too, and cannot keep the SLA there. `items_per_request` are those that
    each stage is expected to have of one request, 1 if not given. `ends_with_pipeline` is whether
    one replica of the pipeline cannot carry more than the last rate.
    """

    rates_per_s: tuple[float, ...]
    divisions: tuple[Mapping[str, int], ...]
    items_per_request: Mapping[str, float] = field(default_factory=dict)
    ends_with_pipeline: bool = True

    def lookup(self, rate_per_s: float) -> Mapping[str, int]:
        at = bisect_left(self.rates_per_s, rate_per_s)
        return self.divisions[min(at, len(self.divisions) - 1)]

    def share_of_workers(self, stage: str, rate_per_s: float) -> float:
        """Return the fractional number of workers that a stage needs for a rate.

        Between the capacities of n - 1 and n workers it rises from n - 1 to n, so that the sum over
        several pipelines can be rounded up. Beyond the last rate it is proportional.
        """
        needs = [*itertools.accumulate((division[stage] for division in self.divisions), max)]
        at = bisect_left(self.rates_per_s, rate_per_s)
        if at == len(needs):
            return needs[-1] * rate_per_s / self.rates_per_s[-1]
        first, last = bisect_left(needs, needs[at]), bisect_right(needs, needs[at]) - 1
        below_per_s = self.rates_per_s[first - 1] if first else 0.0
        part = (rate_per_s - below_per_s) / (self.rates_per_s[last] - below_per_s)
        return needs[at] - 1 + part


def solve_divisions(
    steps: Sequence[Step],
    sla: ServiceLevelObjective,
    max_workers: int,
    worker_costs: Mapping[str, float] | None = None,
    *,
    max_replicas: Mapping[str, int] | None = None,
    requests: int = _REQUESTS,
) -> DivisionTable:
    """Solve the divisions of least cost for all rates that a number of workers can carry.

    Arguments and errors are those of `plan_pipeline`. `max_workers` is of all stages together, but
    those in `max_replicas`, whose workers are replicas of their own.
    """
    stages = compile_steps(steps).stages
    most = max_replicas or {}
    inside = [stage for stage in stages if stage.name not in most]
    if max_workers < len(inside):
        raise InvalidInputError(
            f"max_workers: must be at least {len(inside)}, one for each stage, not {max_workers}"
        )
    per_request = stage_rates(steps, 1.0)
    alone_per_s = min(
        profile_of(stage).capacity_per_s / per_request[stage.name] for stage in stages
    )
    limits = {stage.name: max_workers - len(inside) + 1 for stage in inside} | dict(most)
    rates: list[float] = []
    divisions: list[Mapping[str, int]] = []
    rate_per_s = _FIRST_SHARE * alone_per_s
    while True:
        try:
            plan = plan_pipeline(
                steps, rate_per_s, sla, worker_costs, max_workers=limits, requests=requests
            )
        except InfeasibleError:
            # A higher load can make an SLA infeasible, because batches grow and take longer.
            if not divisions:
                raise
            break
        workers = plan.workers
        if sum([workers[stage.name] for stage in inside]) > max_workers:
            break
        rates.append(rate_per_s)
        divisions.append(workers)
        rate_per_s *= _STEP
    if not divisions:
        raise InfeasibleError(
            f"max_workers: {max_workers} do not keep {sla.in_words()}, even with little load"
        )
    ends_with_pipeline = all(divisions[-1][name] < count for name, count in most.items())
    return DivisionTable(tuple(rates), tuple(divisions), per_request, ends_with_pipeline)


class StageScaler:
    """When the workers of the stages change, on any clock.

    More workers are ordered at once; fewer only when they would have been enough for some time.

    `core` counts the requests offered, and the items of each stage. `workers` is the last decision;
    `table` may be replaced by another one of the same stages.
    """

    def __init__(
        self, table: DivisionTable, core: PipelineCore, scale_down_delay_s: float = 60.0
    ) -> None:
        self.table = table
        self.workers = {stage.name: stage.workers for stage in core.stages}
        self.items_per_request: dict[str, float] = {}
        self._core, self._scale_down_delay_s = core, scale_down_delay_s
        self._offered, self._admitted = core.offered, core.admitted
        self._items = [stage.items for stage in core.stages]
        # By stage; "" is the pipeline.
        self._stabilizers = {name: ScaleDownStabilizer() for name in ("", *self.workers)}
        self._held: dict[str, float] = {}

    def decide(self, now_s: float, elapsed_s: float = PERIOD_S) -> dict[str, int]:
        offered, self._offered = self._core.offered - self._offered, self._core.offered
        self._measure_items()
        rate_per_s = MARGIN * offered / elapsed_s
        rates = {"": rate_per_s}
        for stage in self.workers:
            expected = self.table.items_per_request.get(stage, 1.0)
            rates[stage] = rate_per_s * self.items_per_request.get(stage, expected) / expected
        for name, rate in rates.items():
            self._stabilizers[name].observe(now_s, rate, self._scale_down_delay_s)
            self._held[name] = self._stabilizers[name].highest_per_s
        self.workers = {
            stage: self.table.lookup(self._held[stage])[stage] for stage in self.workers
        }
        return self.workers

    def _measure_items(self) -> None:
        core = self._core
        admitted, self._admitted = core.admitted - self._admitted, core.admitted
        if not admitted:
            return
        weight = admitted / (admitted + _RATIO_REQUESTS)
        for number, stage in enumerate(core.stages):
            items, self._items[number] = stage.items - self._items[number], stage.items
            known = self.items_per_request.get(stage.name, items / admitted)
            self.items_per_request[stage.name] = known + weight * (items / admitted - known)

    def replica_needs(self, stages: Iterable[str]) -> dict[str, float]:
        """Return the fractional number of replicas that the load needs, by stage.

        The pipeline's own replicas have the key "".
        """
        held, table = self._held, self.table
        own = held.get("", 0.0) / table.rates_per_s[-1] if table.ends_with_pipeline else 0.0
        needs = {stage: table.share_of_workers(stage, held.get(stage, 0.0)) for stage in stages}
        return {"": own, **needs}
