"""The workers of each stage at the least cost, and each stage's share of the response time.

The search assumes that more workers in a stage never make the pipeline slower.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.steps import Stage, Step
from deployments.pipelines.planning.answered import answered_share
from deployments.pipelines.planning.tandem import (
    REQUESTS,
    SimulatedPipeline,
    StageLoad,
    profile_of,
    simulate,
)
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.tables.solving import TableSolver

#: The workers of each stage, in the order of the stages.
Division = tuple[int, ...]

# A stage has plenty of workers with this many more than it needs to keep up.
_PLENTY = 64


@dataclass(frozen=True, eq=False)
class PipelinePlan:
    """A plan and its predicted results. The percentile is that without refusals.

    `service_level` is that with refusals if they count, and below the SLA's where no worker helps.
    `budgets_ms` divides the SLA's response time among the stages, in proportion to the percentile
    that each has by itself. `least_power` has the objective of each stage that saves power within
    its budget; none if they would miss the SLA together.
    """

    workers: Mapping[str, int]
    cost: float
    percentile_ms: float
    service_level: float
    budgets_ms: Mapping[str, float]
    mean_power_w: float | None
    loads: Mapping[str, StageLoad]
    least_power: Mapping[str, ServiceLevelObjective]


def plan_pipeline(
    steps: Sequence[Step],
    arrival_rate_per_s: float,
    sla: ServiceLevelObjective,
    worker_costs: Mapping[str, float] | None = None,
    *,
    max_workers: Mapping[str, int] | None = None,
    requests: int = REQUESTS,
    counts_refusals: bool = True,
) -> PipelinePlan:
    """Find a division of workers that keeps an SLA at little cost (`cheap_division`).

    Every stage needs a profile. `worker_costs` are 1 if not given, `max_workers` what a stage can
    have. Each division is simulated with this number of Poisson `requests`. With
    `counts_refusals`, workers are added where the pipeline needs them because it refuses and drops
    (`division_despite_refusals`). Raises `InvalidInputError` as `simulate`, `InfeasibleError` if no
    number of workers keeps the SLA without refusals.
    """
    graph = compile_steps(steps)
    stages = graph.stages
    costs = [(worker_costs or {}).get(stage.name, 1.0) for stage in stages]
    items = graph.items_per_request()
    rates = {name: arrival_rate_per_s * count for name, count in items.items()}
    least = [int(rates[stage.name] / profile_of(stage).capacity_per_s) + 1 for stage in stages]
    limits = max_workers or {}
    most = [min(stage.most_workers, limits.get(stage.name, math.inf)) for stage in stages]
    for stage, count, limit in zip(stages, least, most, strict=True):
        if count > limit:
            raise InfeasibleError(
                f"stage {stage.name}: workers limited to {limit:g} serve "
                f"{limit * profile_of(stage).capacity_per_s:.6g} items/s, not "
                f"{rates[stage.name]:.6g}"
            )

    names = [stage.name for stage in stages]

    def run(division: Division) -> SimulatedPipeline:
        workers = dict(zip(names, division, strict=True))
        return simulate(steps, arrival_rate_per_s, workers, requests=requests)

    def percentile_ms(division: Division) -> float:
        try:
            return float(np.percentile(run(division).response_ms, sla.percentile))
        except InfeasibleError:
            return math.inf

    @functools.cache
    def answered(division: Division) -> tuple[float, tuple[int, ...]]:
        workers = dict(zip(names, division, strict=True))
        return answered_share(steps, arrival_rate_per_s, workers, sla, requests=requests)

    division = cheap_division(percentile_ms, sla, least, most, costs)
    if counts_refusals:
        division = division_despite_refusals(answered, sla, division, most, costs)
    workers = dict(zip(names, division, strict=True))
    simulated = run(division)
    level = answered(division)[0] if counts_refusals else simulated.service_level(sla)
    budgets_ms = _budgets_ms(simulated, stages, sla)
    solvers = _least_power(stages, budgets_ms, sla)
    policies = {name: s.lookup(rates[name] / workers[name]) for name, (_, s) in solvers.items()}
    if policies:
        saving = simulate(steps, arrival_rate_per_s, workers, policies=policies, requests=requests)
        saving_level = saving.service_level(sla)
        if counts_refusals:
            saving_level, _ = answered_share(
                steps, arrival_rate_per_s, workers, sla, policies=policies, requests=requests
            )
        in_time = np.percentile(saving.response_ms, sla.percentile) <= sla.response_time_ms
        if in_time and saving_level >= sla.least_level:
            simulated, level = saving, saving_level
        else:
            solvers = {}
    response_ms = simulated.response_ms
    powers_w = [load.mean_power_w for load in simulated.stages.values()]
    known_w = [power_w for power_w in powers_w if power_w is not None]
    return PipelinePlan(
        workers=workers,
        cost=float(np.dot([*workers.values()], costs)),
        percentile_ms=float(np.percentile(response_ms, sla.percentile)),
        service_level=level,
        budgets_ms=budgets_ms,
        mean_power_w=sum(known_w) if len(known_w) == len(powers_w) else None,
        loads=simulated.stages,
        least_power={name: objective for name, (objective, _) in solvers.items()},
    )


def _least_power(
    stages: Sequence[Stage], budgets_ms: Mapping[str, float], sla: ServiceLevelObjective
) -> dict[str, tuple[ServiceLevelObjective, TableSolver]]:
    """Return the objective and the solver of each stage that can save power."""
    found = {}
    for stage in stages:
        if stage.policy == "smdp" and profile_of(stage).energy_mj is not None:
            objective = ServiceLevelObjective(budgets_ms[stage.name], sla.percentile)
            with contextlib.suppress(InfeasibleError, InvalidInputError):
                found[stage.name] = objective, TableSolver(profile_of(stage), objective)
    return found


def cheap_division(
    percentile_ms: Callable[[Division], float],
    sla: ServiceLevelObjective,
    least: Sequence[int],
    most: Sequence[float],
    costs: Sequence[float],
) -> Division:
    """Return a division that keeps an SLA, such that one worker less in any stage does not.

    From the least workers that keep up, the worker with the largest gain per cost is added until
    the SLA is kept; then what is not needed is removed, the dearest first, and workers move to
    other stages as long as that costs no more and shortens the response time. `most` are what each
    stage may have. Raises `InfeasibleError` if no division keeps the SLA.
    """
    ms = functools.cache(percentile_ms)
    limit_ms, workers = sla.response_time_ms, tuple(least)
    plenty = _plenty(workers, most)
    if ms(workers) > limit_ms and ms(plenty) > limit_ms:
        raise InfeasibleError(
            f"no number of workers keeps {sla.in_words()}: with {_PLENTY} more in each stage than "
            f"it needs to keep up, the percentile is {ms(plenty):.4g} ms"
        )
    while ms(workers) > limit_ms:
        gains = [
            ((ms(workers) - max(limit_ms, ms(more))) / costs[stage], more)
            for stage, more in _with_another(workers, 1, plenty)
        ]
        workers = max(gains)[1]

    def value(division: Division) -> tuple[bool, float, float]:
        return ms(division) > limit_ms, round(float(np.dot(division, costs)), 9), ms(division)

    while True:
        fewer = [less for _, less in _with_another(workers, -1, least)]
        moved = [more for less in fewer for _, more in _with_another(less, 1, plenty)]
        best = min([workers, *fewer, *moved], key=value)
        if best == workers:
            return workers
        workers = best


def division_despite_refusals(
    answered: Callable[[Division], tuple[float, Sequence[int]]],
    sla: ServiceLevelObjective,
    least: Division,
    most: Sequence[float],
    costs: Sequence[float],
) -> Division:
    """Return a division of at least `least` whose share answered in time keeps an SLA.

    `answered` returns that share, and the requests that each stage missed. Workers are added where
    the most are missed; then what is not needed is removed, the dearest first. If even plenty of
    workers do not keep the SLA, none is added.
    """

    def is_enough(division: Division) -> bool:
        return answered(division)[0] >= sla.least_level

    plenty, workers = _plenty(least, most), least
    if not is_enough(workers) and not is_enough(plenty):
        return least
    while not is_enough(workers):
        _, missed = answered(workers)
        _, workers = max((missed[stage], more) for stage, more in _with_another(workers, 1, plenty))
    while fewer := [one for one in _with_another(workers, -1, least) if is_enough(one[1])]:
        workers = max(fewer, key=lambda one: costs[one[0]])[1]
    return workers


def _plenty(workers: Division, most: Sequence[float]) -> Division:
    return tuple([int(min(n + _PLENTY, limit)) for n, limit in zip(workers, most, strict=True)])


def _with_another(
    workers: Division, change: int, limits: Sequence[int]
) -> list[tuple[int, Division]]:
    return [
        (stage, (*workers[:stage], count + change, *workers[stage + 1 :]))
        for stage, count in enumerate(workers)
        if count != limits[stage]
    ]


def _budgets_ms(
    simulated: SimulatedPipeline, stages: Sequence[Stage], sla: ServiceLevelObjective
) -> dict[str, float]:
    own_ms = {
        stage.name: float(np.percentile(simulated.stages[stage.name].times_ms, sla.percentile))
        for stage in stages
    }
    total_ms = sum(own_ms.values())
    return {name: sla.response_time_ms * ms / total_ms for name, ms in own_ms.items()}
