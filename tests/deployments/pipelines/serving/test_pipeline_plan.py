"""The what-if of a pipeline plans as `sojourn pipeline plan`."""

import sys
from typing import Any

import pytest

from deployments.pipelines.planning.sizing import plan_pipeline
from deployments.pipelines.serving.config import PipelineConfig
from deployments.pipelines.serving.pipeline_plan import REQUESTS, plan
from deployments.pipelines.serving.planning import PipelinePlanning
from deployments.pipelines.serving.step_config import build_steps
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

HEAVY = {"max_batch_size": 8, "latency_ms": {"fixed": 5, "per_request": 2}}
SINGLE = {**HEAVY, "max_batch_size": 1}
STEPS: list[dict[str, Any]] = [
    {"stage": {"code": "nowhere:Decode", "place": "thread", "profile": SINGLE}},
    {
        "each": {
            "branch": [
                {
                    "stage": {
                        "code": "nowhere:Encode",
                        "batch_size": 8,
                        "profile": HEAVY,
                        "expert": {"cost": 3},
                    }
                }
            ],
            "join": "nowhere:join",
            "expert": {"expected_items": 2},
        }
    },
    {
        "switch": {
            "choose": "nowhere:choose",
            "branches": {
                "stage": [{"stage": {"code": "nowhere:A", "name": "left", "profile": HEAVY}}],
                "other": [],
            },
        }
    },
]  # fmt: skip


def config(steps: list[dict[str, Any]] = STEPS) -> PipelineConfig:
    tensor = {"name": "x", "datatype": "FP32"}
    content = {"name": "p", "inputs": [tensor], "outputs": [tensor], "steps": steps}
    return PipelineConfig.model_validate(content)


def arguments(pipeline: PipelineConfig, **profiles: Profile) -> tuple[Any, ...]:
    stages = [stage.build() for stage in pipeline.stages().values()]
    believed = [
        type(stage)(**{**vars(stage), "profile": profiles.get(stage.name, stage.profile)})
        for stage in stages
    ]
    now = {"response_time_ms": 150, "percentile": 99, "arrival_rate_per_s": 100}
    planning = PipelinePlanning(pipeline, lambda: believed)
    return planning.calls({"now": now, "then": now, "model": "p"})["now"][1]


SCENARIO = {"response_time_ms": 150.0, "percentile": 99.0, "arrival_rate_per_s": 250.0}


def test_a_plan_is_that_of_the_planner_and_needs_none_of_the_code() -> None:
    pipeline = config()
    found = plan(*arguments(pipeline), **SCENARIO)
    direct = plan_pipeline(
        build_steps(pipeline.steps, lambda path: list),
        250,
        ServiceLevelObjective(150, 99),
        {"encode": 3.0},
        requests=REQUESTS,
    )
    assert {stage["name"]: stage["workers"] for stage in found["stages"]} == {
        name: setting.workers for name, setting in direct.settings.items()
    }
    assert found["predicted_percentile_ms"] == direct.percentile_ms <= 150
    assert found["cost"] == direct.cost
    assert found["meets_sla"]
    # The item of each stage: two of each request at one, half of the requests at another.
    by_name = {stage["name"]: stage for stage in found["stages"]}
    assert by_name["encode"]["mean_batch_size"] > 1
    assert by_name["encode"]["workers"] > by_name["left"]["workers"]
    assert "nowhere" not in sys.modules


def test_more_load_and_a_margin_take_the_same_workers() -> None:
    def workers(**more: float) -> int:
        return int(plan(*arguments(config()), **SCENARIO | more)["workers"])

    calm, careful, doubled = workers(), workers(margin=2), workers(arrival_rate_per_s=500)
    assert calm < careful == doubled


def test_what_is_believed_counts_and_not_what_was_written() -> None:
    pipeline = config()
    slower = Profile.from_dict({"max_batch_size": 8, "latency_ms": {"fixed": 15, "per_request": 6}})
    as_written = plan(*arguments(pipeline), **SCENARIO)
    believed = plan(*arguments(pipeline, encode=slower), **SCENARIO)
    assert believed["workers"] > as_written["workers"]


def test_why_there_is_no_plan() -> None:
    with pytest.raises(InfeasibleError, match="no number of workers keeps 99% of requests"):
        plan(*arguments(config()), **SCENARIO | {"response_time_ms": 10})
    bare = [{"stage": {"code": "nowhere:A"}}]
    with pytest.raises(InvalidInputError, match="stage a: planning needs its profile"):
        plan(*arguments(config(bare)), **SCENARIO)


@pytest.mark.parametrize(
    ("change", "said"),
    [({"margin": 0.5}, "then.margin: "), ({"burst_factor": 2}, "then.burst_factor: ")],
)
def test_questions_that_are_none(change: dict[str, float], said: str) -> None:
    now = {"response_time_ms": 150, "percentile": 99, "arrival_rate_per_s": 100}
    planning = PipelinePlanning(config(), list)
    with pytest.raises(InvalidInputError, match=f"^{said}"):
        planning.calls({"now": now, "then": {**now, **change}})
