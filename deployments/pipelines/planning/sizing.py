"""The workers of each stage at the least cost, and the division of the response time among them.

`deployments.pipelines.planning.divisions` finds the workers, by the simulation of the whole
pipeline. Where the
profiles have energies, the response time that is left is then spent on larger batches: of all
combinations of the stages' candidate policies, the one of least power that keeps the SLA is taken.
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from deployments.pipelines.graph import compile_steps
from deployments.pipelines.planning.convolution import (
    Times,
    response_cdf,
    stage_cdf,
    stage_evaluation,
)
from deployments.pipelines.planning.divisions import Division, cheapest_division
from deployments.pipelines.planning.tandem import (
    REQUESTS,
    Setting,
    Settings,
    StageLoad,
    own_settings,
    profile_of,
    simulate,
    simulate_response_ms,
)
from deployments.pipelines.steps import Each, Ensemble, Stage, Step, Switch
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.optimization import solve

# `equal_division` gives a stage up after so many more workers than it needs to keep up.
_MANY = 64
#: Divisions that a search tries at most: pipelines of up to four stages need far fewer.
MOST_TRIED = 1_000
# The shares of the response time for which a policy of least power is a candidate.
_BUDGET_SHARES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
_MAX_COMBINATIONS = 20_000


@dataclass(frozen=True, eq=False)
class PipelinePlan:
    """A plan, and what is predicted of it.

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
    most_tried: int = MOST_TRIED,
    save_power: bool = True,
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
    most_tried : int
        After so many divisions the cheapest so far is taken.
    save_power : bool
        Whether to choose policies of less power, where profiles have energies. Otherwise each stage
        keeps its own.

    Returns
    -------
    PipelinePlan

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
    policies = [own_settings([stage])[stage.name].policy for stage in stages]

    def percentile_ms(workers: Division) -> float:
        settings = _settings(stages, workers, policies)
        return _percentile_ms(steps, settings, arrival_rate_per_s, sla, requests)

    division = cheapest_division(percentile_ms, sla, least, most, costs, most_tried)
    settings: Settings = _settings(stages, division.workers, policies)
    if save_power:
        settings = _save_power(steps, stages, settings, arrival_rate_per_s, sla, requests)
    simulated = simulate(steps, settings, arrival_rate_per_s, requests=requests)
    response_ms = simulated.response_ms
    return PipelinePlan(
        settings=settings,
        cost=float(np.dot(division.workers, costs)),
        percentile_ms=float(np.percentile(response_ms, sla.percentile)),
        service_level=float(np.mean(response_ms <= sla.response_time_ms)),
        budgets_ms=_budgets_ms(stages, settings, rates, sla),
        mean_power_w=_mean_power_w(stages, settings, rates),
        tried=division.tried,
        is_cheapest=division.is_cheapest,
        loads=simulated.stages,
    )


def equal_division(
    steps: Sequence[Step], arrival_rate_per_s: float, sla: ServiceLevelObjective
) -> list[int] | None:
    """Return the workers of each stage if each must keep its equal share of the response time.

    This is how pipelines are sized without a model of the whole; it is for comparison.

    Returns
    -------
    list of int or None
        None if a stage cannot keep its share with any number of workers.
    """
    stages = compile_steps(steps).stages
    rates = stage_rates(steps, arrival_rate_per_s)
    share = replace(sla, response_time_ms=sla.response_time_ms / len(stages))
    workers = []
    for stage in stages:
        least = _least_workers(stage, rates[stage.name])
        policy = stage.first_policy()
        for count in range(least, least + _MANY):
            settings = {stage.name: Setting(count, policy)}
            if _percentile_ms([stage], settings, rates[stage.name], share, REQUESTS) <= (
                share.response_time_ms
            ):
                workers.append(count)
                break
        else:
            return None
    return workers


def _least_workers(stage: Stage, rate_per_s: float) -> int:
    return math.floor(rate_per_s / profile_of(stage).capacity_per_s) + 1


def _settings(
    stages: Sequence[Stage], workers: Sequence[int], policies: Sequence[BatchingPolicy]
) -> dict[str, Setting]:
    return {
        stage.name: Setting(count, policy)
        for stage, count, policy in zip(stages, workers, policies, strict=True)
    }


def _percentile_ms(
    steps: Sequence[Step],
    settings: Settings,
    arrival_rate_per_s: float,
    sla: ServiceLevelObjective,
    requests: int,
) -> float:
    try:
        response_ms = simulate_response_ms(steps, settings, arrival_rate_per_s, requests=requests)
    except InfeasibleError:
        return math.inf
    return float(np.percentile(response_ms, sla.percentile))


def _save_power(
    steps: Sequence[Step],
    stages: Sequence[Stage],
    settings: Settings,
    arrival_rate_per_s: float,
    sla: ServiceLevelObjective,
    requests: int,
) -> Settings:
    """Return the settings with the policies of least power that keep the SLA together.

    The combinations are tried in the order of their power. One that the convolution rules out by
    far is not simulated.
    """
    rates = stage_rates(steps, arrival_rate_per_s)
    candidates = [
        _policies_by_power(stage, settings[stage.name], rates[stage.name], sla) for stage in stages
    ]
    times = Times(sla.response_time_ms)
    workers = [settings[stage.name].workers for stage in stages]
    powers = [[power_w for power_w, _ in policies] for policies in candidates]
    for choice in _cheapest_combinations(powers):
        policies = [options[at][1] for options, at in zip(candidates, choice, strict=True)]
        trial = _settings(stages, workers, policies)
        cdf = response_cdf(steps, trial, arrival_rate_per_s, times)
        if times.percentile_ms(cdf, sla.percentile) > 1.1 * sla.response_time_ms:
            continue
        if _percentile_ms(steps, trial, arrival_rate_per_s, sla, requests) <= sla.response_time_ms:
            return trial
    return settings


def _policies_by_power(
    stage: Stage, setting: Setting, rate_per_s: float, sla: ServiceLevelObjective
) -> list[tuple[float, BatchingPolicy]]:
    """Return the candidate policies of a stage with their power, the least power first."""
    profile = profile_of(stage)
    if profile.energy_mj is None or stage.policy is not None or stage.max_wait_ms:
        return [(0.0, setting.policy)]
    share_per_s = rate_per_s / setting.workers
    policies = [setting.policy]
    for share in _BUDGET_SHARES:
        budget = replace(sla, response_time_ms=share * sla.response_time_ms)
        if budget.response_time_ms > profile.latency_ms[0]:
            solution = solve(profile, share_per_s, budget)
            if solution.meets_sla and solution.policy not in policies:
                policies.append(solution.policy)
    by_power = []
    for policy in policies:
        power_w = stage_evaluation(profile, policy, share_per_s).mean_power_w
        assert power_w is not None
        by_power.append((setting.workers * power_w, policy))
    return sorted(by_power, key=lambda entry: entry[0])


def _cheapest_combinations(costs: Sequence[Sequence[float]]) -> Iterator[tuple[int, ...]]:
    """Yield one place in each increasing list of costs, in the order of their sum."""
    first = (0,) * len(costs)
    heap = [(sum(options[0] for options in costs), first)]
    seen = {first}
    for _ in range(_MAX_COMBINATIONS):
        if not heap:
            return
        total, choice = heapq.heappop(heap)
        yield choice
        for place, options in enumerate(costs):
            at = choice[place]
            if at + 1 < len(options):
                further = (*choice[:place], at + 1, *choice[place + 1 :])
                if further not in seen:
                    seen.add(further)
                    heapq.heappush(heap, (total + options[at + 1] - options[at], further))


def _budgets_ms(
    stages: Sequence[Stage],
    settings: Settings,
    rates: Mapping[str, float],
    sla: ServiceLevelObjective,
) -> dict[str, float]:
    times = Times(sla.response_time_ms)
    own_ms = {
        stage.name: times.percentile_ms(
            stage_cdf(stage, settings, rates[stage.name], times), sla.percentile
        )
        for stage in stages
    }
    total_ms = sum(own_ms.values())
    return {name: sla.response_time_ms * ms / total_ms for name, ms in own_ms.items()}


def _mean_power_w(
    stages: Sequence[Stage], settings: Settings, rates: Mapping[str, float]
) -> float | None:
    total_w = 0.0
    for stage in stages:
        setting = settings[stage.name]
        share_per_s = rates[stage.name] / setting.workers
        power_w = stage_evaluation(profile_of(stage), setting.policy, share_per_s).mean_power_w
        if power_w is None:
            return None
        total_w += setting.workers * power_w
    return total_w
