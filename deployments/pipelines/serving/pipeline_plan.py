"""Plan the workers of a pipeline, in the console's worker process."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deployments.pipelines.core.steps import Step
from deployments.pipelines.planning.sizing import PipelinePlan, plan_pipeline
from policy.objective import ServiceLevelObjective

#: Fewer than in `sojourn pipeline plan`, so that an answer takes a tenth of a second.
REQUESTS = 50_000


def plan(
    steps: Sequence[Step],
    costs: Mapping[str, float],
    *,
    response_time_ms: float,
    percentile: float,
    arrival_rate_per_s: float,
    margin: float,
) -> dict[str, Any]:
    """Return the plan for a `PipelineScenario`, in JSON's types; errors as of `plan_pipeline`.

    The workers are those that the load times the margin needs; the rest is predicted at that load.
    """
    sla = ServiceLevelObjective(response_time_ms, percentile)
    found = plan_pipeline(steps, margin * arrival_rate_per_s, sla, costs, requests=REQUESTS)
    return {"workers": sum(found.workers.values()), **described(found, sla)}


def described(found: PipelinePlan, sla: ServiceLevelObjective) -> dict[str, Any]:
    return {
        "cost": found.cost,
        "meets_sla": found.percentile_ms <= sla.response_time_ms,
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
