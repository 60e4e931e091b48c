"""The workers of each stage at the least cost, and each stage's share of the response time.

`deployments.pipelines.planning.divisions` finds the workers, with simulations of the whole
pipeline.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.steps import Each, Ensemble, Stage, Step, Switch
from deployments.pipelines.planning.divisions import Division, cheapest_division
from deployments.pipelines.planning.tandem import (
    REQUESTS,
    Setting,
    Settings,
    SimulatedPipeline,
    StageLoad,
    profile_of,
    simulate,
)
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective

#: Maximum divisions of a search: pipelines of up to four stages need far fewer.
MOST_TRIED = 1_000


@dataclass(frozen=True, eq=False)
class PipelinePlan:
    """A plan and its predicted results.

    Attributes
    ----------
    settings : mapping of str to Setting
        Workers and policy of each stage.
    cost : float
        Of all workers together.
    percentile_ms : float
        The SLA's percentile of the response time.
    service_level : float
        Fraction of the requests answered in time.
    budgets_ms : mapping of str to float
        The division of the SLA's response time among the stages: in proportion to the percentile
        that each has by itself.
    mean_power_w : float or None
        Of all workers; None if a profile has no energy.
    tried : int
        Divisions of workers that were tried.
    is_cheapest : bool
        Whether no cheaper division keeps the SLA; False if the search ended early.
    loads : mapping of str to StageLoad
        Batches, utilization and times of each stage.
    """

    settings: Settings
    cost: float
    percentile_ms: float
    service_level: float
    budgets_ms: Mapping[str, float]
    mean_power_w: float | None
    tried: int
    is_cheapest: bool
    loads: Mapping[str, StageLoad]


def stage_rates(steps: Sequence[Step], arrival_rate_per_s: float) -> dict[str, float]:
    """Return the items per second that reach each stage."""
    rates: dict[str, float] = {}

    def visit(step: "Step | Sequence[Step]", rate_per_s: float) -> None:
        if isinstance(step, Stage):
            rates[step.name] = rate_per_s
        elif isinstance(step, Each):
            visit(step.branch, rate_per_s * step.expected_items)
        elif isinstance(step, Switch):
            for key, share in step.expected_shares.items():
                visit(step.branches[key], rate_per_s * share)
        else:
            for part in step.branches if isinstance(step, Ensemble) else step:
                visit(part, rate_per_s)

    visit(list(steps), arrival_rate_per_s)
    return rates


def plan_pipeline(
    steps: Sequence[Step],
    arrival_rate_per_s: float,
    sla: ServiceLevelObjective,
    worker_costs: Mapping[str, float] | None = None,
    *,
    requests: int = REQUESTS,
    max_divisions: int = MOST_TRIED,
) -> PipelinePlan:
    """Find the division of workers of least cost that keeps an SLA.

    Parameters
    ----------
    steps : sequence of steps
        Every stage needs a profile. A stage's own workers are not used; its policy is.
    arrival_rate_per_s : float
        Poisson arrivals, requests per second.
    sla : ServiceLevelObjective
        Of the whole pipeline.
    worker_costs : mapping of str to float, optional
        Cost of one worker of each stage, above 0; 1 if not given.
    requests : int
        Simulated for each division.
    max_divisions : int
        After this many divisions the cheapest so far is taken.

    Raises
    ------
    InvalidInputError
        A stage has no profile, or the rate is not above 0 and finite.
    InfeasibleError
        No number of workers keeps the SLA, or a stage on the event loop cannot keep up.
    """
    stages = compile_steps(steps).stages
    costs = [(worker_costs or {}).get(stage.name, 1.0) for stage in stages]
    rates = stage_rates(steps, arrival_rate_per_s)
    least = [_least_workers(stage, rates[stage.name]) for stage in stages]
    most = [1 if stage.place == "loop" else math.inf for stage in stages]
    for stage, count, limit in zip(stages, least, most, strict=True):
        if count > limit:
            raise InfeasibleError(
                f"stage {stage.name}: place loop has one worker, which serves at most "
                f"{profile_of(stage).capacity_per_s:.6g} items/s, not {rates[stage.name]:.6g}"
            )

    def settings_of(workers: Division) -> dict[str, Setting]:
        return {
            stage.name: Setting(count, stage.first_policy())
            for stage, count in zip(stages, workers, strict=True)
        }

    def percentile_ms(workers: Division) -> float:
        try:
            run = simulate(steps, settings_of(workers), arrival_rate_per_s, requests=requests)
        except InfeasibleError:
            return math.inf
        return float(np.percentile(run.response_ms, sla.percentile))

    division = cheapest_division(percentile_ms, sla, least, most, costs, max_divisions)
    settings = settings_of(division.workers)
    simulated = simulate(steps, settings, arrival_rate_per_s, requests=requests)
    response_ms = simulated.response_ms
    powers_w = [load.mean_power_w for load in simulated.stages.values()]
    known_w = [power_w for power_w in powers_w if power_w is not None]
    return PipelinePlan(
        settings=settings,
        cost=float(np.dot(division.workers, costs)),
        percentile_ms=float(np.percentile(response_ms, sla.percentile)),
        service_level=float(np.mean(response_ms <= sla.response_time_ms)),
        budgets_ms=_budgets_ms(simulated, stages, sla),
        mean_power_w=sum(known_w) if len(known_w) == len(powers_w) else None,
        tried=division.tried,
        is_cheapest=division.is_cheapest,
        loads=simulated.stages,
    )


def _least_workers(stage: Stage, rate_per_s: float) -> int:
    return math.floor(rate_per_s / profile_of(stage).capacity_per_s) + 1


def _budgets_ms(
    simulated: SimulatedPipeline, stages: Sequence[Stage], sla: ServiceLevelObjective
) -> dict[str, float]:
    own_ms = {
        stage.name: float(np.percentile(simulated.stages[stage.name].times_ms, sla.percentile))
        for stage in stages
    }
    total_ms = sum(own_ms.values())
    return {name: sla.response_time_ms * ms / total_ms for name, ms in own_ms.items()}
