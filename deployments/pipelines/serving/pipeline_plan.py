"""Plan the workers of a pipeline, in the console's worker process.

It imports none of the pipeline's code: a plan needs only the profiles of its stages.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from deployments.pipelines.planning.sizing import PipelinePlan, plan_pipeline
from deployments.pipelines.serving.step_config import StageConfig, StepConfig, build_steps
from policy.objective import ServiceLevelObjective

#: Fewer than in `sojourn pipeline plan`, so that an answer takes a tenth of a second.
REQUESTS = 50_000


def plan(
    steps: list[Any],
    profiles: Mapping[str, Any],
    costs: Mapping[str, float],
    *,
    response_time_ms: float,
    percentile: float,
    arrival_rate_per_s: float,
    margin: float = 1.0,
) -> dict[str, Any]:
    """Return the plan for a scenario (`PipelineScenario`), in JSON's types.

    The workers are those that the load times the margin needs, with the policies that the stages
    have; the rest is predicted at that load.

    Parameters
    ----------
    steps : list
        The steps of the config file.
    profiles : mapping
        The profiles believed now, by stage, as `Profile.to_dict`.
    costs : mapping of str to float
        The cost of a worker, by stage.
    response_time_ms, percentile, arrival_rate_per_s, margin : float
        The scenario.

    Raises
    ------
    SojournError
        No number of workers keeps the SLA, or a stage has no profile.
    """
    planned = copy.deepcopy(steps)
    for name, stage in _stages(planned):
        # Neither changes a plan, and both may need missing modules.
        stage.pop("example", None)
        (stage.get("expert") or {}).pop("cpus", None)
        if name in profiles:
            stage["profile"] = profiles[name]
    configs = [StepConfig.model_validate(step) for step in planned]
    found = plan_pipeline(
        build_steps(configs, lambda path: list),
        margin * arrival_rate_per_s,
        ServiceLevelObjective(response_time_ms, percentile),
        costs,
        requests=REQUESTS,
    )
    return {
        "workers": sum(setting.workers for setting in found.settings.values()),
        "cost": found.cost,
        "meets_sla": found.percentile_ms <= response_time_ms,
        "predicted_percentile_ms": found.percentile_ms,
        "predicted_service_level": found.service_level,
        "mean_power_w": found.mean_power_w,
        "stages": [_described(name, found, percentile) for name in found.settings],
    }


def _described(name: str, found: PipelinePlan, percentile: float) -> dict[str, Any]:
    setting, load = found.settings[name], found.loads[name]
    return {
        "name": name,
        "workers": setting.workers,
        "control_limit": setting.policy.control_limit,
        "max_batch_size": setting.policy.max_batch_size,
        "mean_batch_size": load.mean_batch_size,
        "utilization": load.utilization,
        "percentile_ms": float(np.percentile(load.times_ms, percentile)),
        "budget_ms": found.budgets_ms[name],
    }


def _stages(steps: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the stages in the steps of a config file, with their names."""
    if isinstance(steps, list):
        for step in steps:
            yield from _stages(step)
    elif isinstance(steps, dict):
        for key, content in steps.items():
            if key == "stage" and isinstance(content, dict):
                yield StageConfig.model_validate(content).stage_name, content
            else:
                yield from _stages(content)
