"""The what-if of a pipeline plans as `sojourn pipeline plan`."""

import pickle
from dataclasses import replace
from types import SimpleNamespace

from deployments.pipelines.core.steps import Each, Stage, Switch
from deployments.pipelines.serving.planning import plan, planning_calls
from policy.profile import Profile


def heavy(size=8, fixed_ms=5.0, per_item_ms=2.0):
    return Profile("m", "d", [fixed_ms + per_item_ms * batch for batch in range(1, size + 1)])


DECODE = Stage(lambda item: item, "decode", place="thread", profile=heavy(1))
ENCODE = Stage(lambda items: items, "encode", batch_size=8, policy="smdp", profile=heavy())
LEFT = Stage(lambda item: item, "left", profile=heavy())
STEPS = [
    DECODE,
    Each(ENCODE, join=lambda results: results[0], expected_items=2),
    Switch(lambda item: "stage", {"stage": [LEFT], "other": []}),
]
SCENARIO = {"response_time_ms": 150, "percentile": 99, "arrival_rate_per_s": 250}


def planned(encode=ENCODE, **change):
    pipeline = SimpleNamespace(stages=[DECODE, encode, LEFT], sla=None)
    question = {"now": SCENARIO, "then": SCENARIO | change}
    calls = planning_calls(STEPS, {"encode": 3.0}, pipeline, question)
    _, arguments, scenario = pickle.loads(pickle.dumps(calls["then"]))
    return plan(*arguments, **scenario)["workers"]


def test_a_margin_is_planned_as_more_load_and_with_the_current_profiles():
    slower = replace(ENCODE, profile=heavy(8, 15, 6))
    calm, careful, doubled, slow = (
        planned(**change)
        for change in ({}, {"margin": 2}, {"arrival_rate_per_s": 500}, {"encode": slower})
    )
    assert calm < careful == doubled
    assert calm < slow
