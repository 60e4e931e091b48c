"""Workers of each stage by the load at the entry, from plans that are made in advance."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.steps import Step
from deployments.pipelines.planning.answered import answered_share
from deployments.pipelines.planning.division_table import DivisionTable
from deployments.pipelines.planning.sizing import PipelinePlan, plan_pipeline
from deployments.pipelines.planning.tandem import profile_of, simulate
from policy.errors import InfeasibleError, InvalidInputError
from policy.load_lateness import LoadLatenessCurve
from policy.objective import ServiceLevelObjective

#: The first rate, as a share of the capacity of one worker in each stage.
_FIRST_SHARE = 0.1
#: Accuracy of the highest rate of a division.
_RESOLUTION = 0.005
REQUESTS = 50_000


def solve_divisions(
    steps: Sequence[Step],
    sla: ServiceLevelObjective,
    max_workers: int,
    worker_costs: Mapping[str, float] | None = None,
    *,
    max_replicas: Mapping[str, int] | None = None,
    requests: int = REQUESTS,
    counts_refusals: bool = True,
) -> DivisionTable:
    """Plan the divisions for all rates that a number of workers can carry (`plan_pipeline`).

    Each plan serves up to the highest rate at which it keeps the SLA; there the next one begins.
    Arguments and errors are those of `plan_pipeline`. `max_workers` is of all stages together, but
    those in `max_replicas`, which have replicas of their own.
    """
    graph = compile_steps(steps)
    stages = graph.stages
    most = max_replicas or {}
    inside = [stage for stage in stages if stage.name not in most]
    if max_workers < len(inside):
        raise InvalidInputError(
            f"max_workers: must be at least {len(inside)}, one for each stage, not {max_workers}"
        )
    per_request = graph.items_per_request()
    alone_per_s = {
        stage.name: profile_of(stage).capacity_per_s / per_request[stage.name] for stage in stages
    }
    limits = {stage.name: max_workers - len(inside) + 1 for stage in inside} | dict(most)
    found: list[tuple[float, PipelinePlan]] = []
    rate_per_s = _FIRST_SHARE * min(alone_per_s.values())
    while True:
        try:
            plan = plan_pipeline(
                *(steps, rate_per_s, sla, worker_costs),
                max_workers=limits,
                requests=requests,
                counts_refusals=counts_refusals,
            )
        except InfeasibleError:
            # A higher load can make an SLA infeasible, because batches grow and take longer.
            if not found:
                raise
            break
        workers = plan.workers
        is_kept = plan.service_level >= sla.least_level
        if not is_kept or sum([workers[stage.name] for stage in inside]) > max_workers:
            break
        capacity_per_s = min(alone_per_s[name] * count for name, count in workers.items())
        highest_per_s = _highest_rate_per_s(
            *(steps, workers, sla, (rate_per_s, capacity_per_s), requests, counts_refusals)
        )
        # A plan that costs no less and carries less is not needed.
        found = [(rate, other) for rate, other in found if other.cost < plan.cost - 1e-9]
        found.append((highest_per_s, plan))
        rate_per_s = highest_per_s * (1 + _RESOLUTION)
    if not found:
        raise InfeasibleError(
            f"max_workers: {max_workers} do not keep {sla.in_words()}, even with little load"
        )
    rates_per_s, plans = zip(*found, strict=True)
    divisions = tuple(plan.workers for plan in plans)
    budgets_ms = tuple(plan.budgets_ms for plan in plans)
    saving = tuple(plan.least_power for plan in plans)
    table = DivisionTable(rates_per_s, divisions, budgets_ms, per_request, least_power=saving)
    if any(divisions[-1][name] >= count for name, count in most.items()):
        return table
    capacity_per_s = min(alone_per_s[name] * count for name, count in divisions[-1].items())
    return replace(table, curve=_curve(steps, sla, table, requests), capacity_per_s=capacity_per_s)


def _highest_rate_per_s(
    steps: Sequence[Step],
    workers: Mapping[str, int],
    sla: ServiceLevelObjective,
    between_per_s: tuple[float, float],
    requests: int,
    counts_refusals: bool,
) -> float:
    """Return the highest rate at which a division keeps an SLA, as it does at the lower of two."""
    least_per_s, highest_per_s = between_per_s

    def simulated(rate_per_s: float) -> float:
        return _level(steps, rate_per_s, workers, sla, requests)

    def answered(rate_per_s: float) -> float:
        return answered_share(steps, rate_per_s, workers, sla, requests=requests)[0]

    for level in (simulated, answered)[: 1 + counts_refusals]:  # the second takes longer
        low = least_per_s
        middle = highest_per_s
        while highest_per_s > low * (1 + _RESOLUTION):
            if level(middle) >= sla.least_level:
                low = middle
            else:
                highest_per_s = middle
            middle = (low * highest_per_s) ** 0.5
        highest_per_s = low
    return highest_per_s


def _level(
    steps: Sequence[Step],
    rate_per_s: float,
    workers: Mapping[str, int],
    sla: ServiceLevelObjective,
    requests: int,
) -> float:
    try:
        found = simulate(steps, rate_per_s, workers, requests=requests)
    except InfeasibleError:
        return 0.0
    return found.service_level(sla)


def _curve(
    steps: Sequence[Step], sla: ServiceLevelObjective, table: DivisionTable, requests: int
) -> LoadLatenessCurve:
    """Return the curve of a pipeline with the last division; overloaded, it refuses the excess."""
    rate_per_s, workers = table.rates_per_s[-1], table.divisions[-1]
    multiples = LoadLatenessCurve.MULTIPLES
    late = [1 - _level(steps, one * rate_per_s, workers, sla, requests) for one in multiples]
    late = np.maximum.accumulate(late).tolist()
    levels = [(1 - sla.late_share_allowed) / multiple for multiple in LoadLatenessCurve.OVERLOADS]
    return LoadLatenessCurve(rate_per_s, tuple(late), overload_levels=tuple(levels))
