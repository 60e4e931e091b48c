"""Stages and steps that are wrong, and what is said of them."""

import math

import pytest

from deployments.pipelines.core.steps import Each, Ensemble, Stage, Switch
from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.profile import Profile

PROFILE = Profile("m", "d", latency_ms=[1.0, 1.5, 2.0])
POLICY = BatchingPolicy.from_control_limit(2, 4)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"name": "a b"}, "must be letters, digits"),
        ({"workers": 0}, "workers must be a whole number of at least 1, not 0"),
        ({"workers": 2, "cpus": [0]}, "give workers or cpus, not both"),
        ({"cpus": []}, "cpus must name at least one CPU"),
        ({"cpus": [4096]}, "CPU 4096 is not available; this machine has 0"),
        ({"cpus": [0], "place": "loop"}, "the pipeline's own cpus pin what place loop runs"),
        ({"place": "moon"}, "place must be process or thread or loop or deployment, not 'moon'"),
        ({"place": "loop", "workers": 2}, "place loop has one worker"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"max_wait_ms": -1}, "max_wait_ms must be a finite number of at least 0"),
        ({"max_wait_ms": math.nan}, "max_wait_ms must be"),
        ({"max_wait_ms": 1}, "max_wait_ms needs a batch_size above 1"),
        ({"place": "loop", "hang_after_s": 1}, "hang_after_s is of a worker"),
        ({"hang_after_s": 0}, "hang_after_s must be above 0"),
        ({"device": "tpu"}, "device must be cpu or cuda"),
        ({"policy": "best", "batch_size": 4}, "must be a BatchingPolicy or 'smdp'"),
        ({"policy": "smdp", "batch_size": 4}, "policy smdp needs a profile"),
        ({"policy": POLICY}, "a policy needs batch_size"),
        ({"policy": POLICY, "batch_size": 4, "max_wait_ms": 1}, "policy or max_wait_ms, not both"),
        ({"policy": POLICY, "batch_size": 3}, "the policy starts batches of 4, batch_size is 3"),
        ({"profile": PROFILE, "batch_size": 4}, "the profile ends at batches of 3"),
    ],
)
def test_a_stage_that_is_wrong(options, complaint):
    with pytest.raises(InvalidInputError, match=complaint) as caught:
        Stage(abs, **{"name": "s", **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Ensemble([]), "needs at least one branch"),
        (lambda: Switch(abs, {}), "needs at least one branch"),
        (lambda: Switch(abs, {1: []}, {2: 1.0}), "shares must have one above 0 for each branch"),
        (lambda: Switch(abs, {1: [], 2: []}, {1: 1.0, 2: 0.0}), "shares must have one above 0"),
        (lambda: Switch(abs, {1: [], 2: []}, {1: 1.0, 2: math.nan}), "and add up to 1"),
        (lambda: Each([], max_items=0), "max_items: must be at least 1"),
        (lambda: Each([], max_items=4, expected_items=5), "expected_items must be 1 to 4"),
    ],
)
def test_a_step_that_is_wrong(make, complaint):
    with pytest.raises(InvalidInputError, match=complaint):
        make()


@pytest.mark.parametrize(
    ("code", "name"),
    [(Stage, "stage"), (abs, "abs"), ("a.b:Model", "model"), (PROFILE, "profile")],
)
def test_the_name_of_a_stage_is_that_of_its_code(code, name):
    assert Stage(code).name == name
