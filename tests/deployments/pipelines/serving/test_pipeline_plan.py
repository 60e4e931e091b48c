"""The what-if of a pipeline plans as `sojourn pipeline plan`."""

import pickle
from dataclasses import replace
from typing import Any

import pytest

from deployments.pipelines.core.steps import Each, Stage, Step, Switch
from deployments.pipelines.planning.sizing import plan_pipeline
from deployments.pipelines.serving.pipeline_plan import REQUESTS, plan
from deployments.pipelines.serving.planning import PipelinePlanning
from policy.objective import ServiceLevelObjective
from policy.profile import Profile


def heavy(size: int = 8, fixed_ms: float = 5.0, per_item_ms: float = 2.0) -> Profile:
    return Profile("m", "d", [fixed_ms + per_item_ms * batch for batch in range(1, size + 1)])


DECODE = Stage(lambda item: item, "decode", place="thread", profile=heavy(1))
ENCODE = Stage(lambda items: items, "encode", batch_size=8, policy="smdp", profile=heavy())
LEFT = Stage(lambda item: item, "left", profile=heavy())
STEPS: list[Step] = [
    DECODE,
    Each(ENCODE, join=lambda results: results[0], expected_items=2),
    Switch(lambda item: "stage", {"stage": [LEFT], "other": []}),
]
SCENARIO = {
    "response_time_ms": 150.0,
    "percentile": 99.0,
    "arrival_rate_per_s": 250.0,
    "margin": 1.0,
}


def planned(steps: list[Step], stages: list[Stage], **change: float) -> dict[str, Any]:
    """Return the plan of the worker process, which has no code."""
    planning = PipelinePlanning(steps, {"encode": 3.0}, lambda: stages)
    question = {"now": SCENARIO, "then": SCENARIO | change, "model": "p"}
    _, arguments, scenario = pickle.loads(pickle.dumps(planning.calls(question)["then"]))
    return plan(*arguments, **scenario)


@pytest.mark.slow
def test_a_plan_is_that_of_the_planner_and_needs_none_of_the_code() -> None:
    found = planned(STEPS, [DECODE, ENCODE, LEFT])
    sla = ServiceLevelObjective(150, 99)
    direct = plan_pipeline(STEPS, 250, sla, {"encode": 3.0}, requests=REQUESTS)
    assert {stage["name"]: stage["workers"] for stage in found["stages"]} == direct.workers
    assert found["predicted_percentile_ms"] == direct.percentile_ms <= 150
    assert found["cost"] == direct.cost
    assert found["meets_sla"]
    # The items of each stage: two of each request at one, half of the requests at another.
    by_name = {stage["name"]: stage for stage in found["stages"]}
    assert by_name["encode"]["mean_batch_size"] > 1
    assert by_name["encode"]["workers"] > by_name["left"]["workers"]


def test_more_load_and_a_margin_take_the_same_workers() -> None:
    def workers(**more: float) -> int:
        return int(planned(STEPS, [DECODE, ENCODE, LEFT], **more)["workers"])

    calm, careful, doubled = workers(), workers(margin=2), workers(arrival_rate_per_s=500)
    assert calm < careful == doubled


def test_current_profiles_count_and_not_the_first_ones() -> None:
    slower = replace(ENCODE, profile=heavy(8, 15, 6))
    now = planned(STEPS, [DECODE, slower, LEFT])
    assert now["workers"] > planned(STEPS, [DECODE, ENCODE, LEFT])["workers"]
