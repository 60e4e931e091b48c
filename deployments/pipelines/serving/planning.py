"""The plans of a pipeline, for its console's what-if questions and for the command line."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from deployments.config.validation import StrictModel, validate
from deployments.console.planner import Call, Question
from deployments.pipelines.core.steps import Each, Ensemble, Stage, Step, Switch
from deployments.pipelines.pipeline import Pipeline
from policy.objective import ServiceLevelObjective

if TYPE_CHECKING:
    from deployments.pipelines.planning.sizing import PipelinePlan

#: Fewer than in `sojourn pipeline plan`, so that an answer takes a second.
REQUESTS = 50_000


class PipelineScenario(StrictModel):
    response_time_ms: float = Field(gt=0, le=1e7)
    percentile: float = Field(gt=1, lt=100)
    #: Requests per second.
    arrival_rate_per_s: float = Field(gt=0, le=1e7)
    #: The workers must carry the load times this factor.
    margin: float = Field(default=1.0, ge=1, le=1e3)


def planning_calls(
    steps: Sequence[Step], costs: Mapping[str, float], pipeline: Pipeline, content: Any
) -> dict[str, Call]:
    """Return the calls that answer a what-if question with the current profiles."""
    question = validate(Question[PipelineScenario], content)
    current = {stage.name: stage for stage in pipeline.stages}
    function = "deployments.pipelines.serving.planning:plan"
    return question.calls(
        *(function, without_code([*steps], current), costs), pipeline.sla is not None
    )


def without_code(
    step: Any,
    current: Mapping[str, Stage],
    measured: Mapping[Step, Mapping[Any, float]] | None = None,
) -> Any:
    """Return steps with their current stages and `measured_steps`, but without code."""
    measured = measured or {}
    if isinstance(step, Stage):
        return replace(current[step.name], code="", options={})
    if isinstance(step, Each):
        items = round(measured.get(step, step.expected_shares)[0])
        branch = without_code(step.branch, current, measured)
        return replace(
            step, branch=branch, join=list, expected_items=min(step.max_items, max(1, items))
        )
    if isinstance(step, Ensemble):
        branches = without_code(step.branches, current, measured)
        return replace(step, branches=branches, join=list)
    if isinstance(step, Switch):
        keyed = {key: without_code(part, current, measured) for key, part in step.branches.items()}
        return replace(step, branches=keyed, choose=len, shares=measured.get(step, step.shares))
    return [without_code(part, current, measured) for part in step]


def plan(
    steps: Sequence[Step],
    costs: Mapping[str, float],
    counts_refusals: bool,
    *,
    response_time_ms: float,
    percentile: float,
    arrival_rate_per_s: float,
    margin: float,
) -> dict[str, Any]:
    """Return the plan for a `PipelineScenario`, in JSON's types; errors as of `plan_pipeline`."""
    from deployments.pipelines.planning.sizing import plan_pipeline  # it loads numba

    sla = ServiceLevelObjective(response_time_ms, percentile)
    rate_per_s = margin * arrival_rate_per_s
    found = plan_pipeline(
        steps, rate_per_s, sla, costs, requests=REQUESTS, counts_refusals=counts_refusals
    )
    return {"workers": sum(found.workers.values()), **described(found, sla)}


def described(found: "PipelinePlan", sla: ServiceLevelObjective) -> dict[str, Any]:
    return {
        "cost": found.cost,
        "meets_sla": found.service_level >= sla.least_level,
        "predicted_percentile_ms": found.percentile_ms,
        "predicted_service_level": found.service_level,
        "mean_power_w": found.mean_power_w,
        "stages": [
            {
                "name": name,
                "workers": workers,
                "mean_batch_size": found.loads[name].mean_batch_size,
                "utilization": found.loads[name].utilization,
                "percentile_ms": float(np.percentile(found.loads[name].times_ms, sla.percentile)),
                "budget_ms": found.budgets_ms[name],
                "least_power": name in found.least_power,
            }
            for name, workers in found.workers.items()
        ],
    }
