from types import SimpleNamespace
from typing import Any

import ray.serve.autoscaling_policy as ray_policy
from hypothesis import given
from hypothesis import strategies as st
from ray.serve._private.common import DeploymentID
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from autoscaler.simulator.autoscalers.ray_default import (
    DelayedTarget,
    RayDefault,
    RaySettings,
)
from tests.support.autoscaling.fleet_views import view

#: Of a context; Ray's default policy reads none of these.
UNUSED = dict.fromkeys(
    (
        *("total_queued_requests", "aggregated_metrics", "raw_metrics"),
        *("last_scale_up_time", "last_scale_down_time"),
    )
)
THEIRS = ray_policy._apply_autoscaling_config(ray_policy.default_autoscaling_policy)


def test_the_defaults_are_those_of_ray():
    theirs = AutoscalingConfig()
    for name in vars(RaySettings()):
        given_there = getattr(theirs, name)
        assert getattr(RaySettings(), name) == (1.0 if given_there is None else given_there), name


@given(
    load=st.lists(
        st.tuples(st.floats(0, 400), st.integers(0, 30), st.floats(0.1, 90)),
        min_size=1,
        max_size=40,
    ),
    target=st.floats(0.5, 40),
    up=st.floats(0.1, 3),
    down=st.floats(0.1, 3),
    delays=st.tuples(st.sampled_from((0.0, 30.0)), st.sampled_from((0.0, 60.0, 600.0))),
)
def test_decides_as_rays_own_policy(load, target, up, down, delays):
    chosen = {
        "target_ongoing_requests": target,
        "upscaling_factor": up,
        "downscaling_factor": down,
        "upscale_delay_s": delays[0],
        "downscale_delay_s": delays[1],
    }
    config = AutoscalingConfig(min_replicas=0, max_replicas=10**9, **chosen)
    ours = DelayedTarget(RaySettings(**chosen))
    now_s, ordered = 1000.0, 3
    state: dict[str, Any] = {}
    for ongoing, running, wait_s in load:
        now_s += wait_s
        context = AutoscalingContext(
            deployment_id=DeploymentID("m", "a"),
            deployment_name="m",
            app_name="a",
            current_num_replicas=running,
            target_num_replicas=ordered,
            running_replicas=[],
            total_num_requests=ongoing,
            capacity_adjusted_min_replicas=0,
            capacity_adjusted_max_replicas=10**9,
            policy_state=state,
            current_time=now_s,
            config=config,
            **UNUSED,
        )
        clock, ray_policy.time = ray_policy.time, SimpleNamespace(time=lambda at=now_s: at)
        try:
            expected, state = THEIRS(context)
        finally:
            ray_policy.time = clock
        decided = ours.next(now_s, ongoing, running, ordered)
        assert decided == expected
        ordered = decided


def test_a_step_is_seen_in_the_next_report_and_followed_after_the_delay():
    policy, sizes = RayDefault(), [2]
    for second, ongoing in enumerate(10 * [4.0] + 60 * [20.0], start=1):
        sizes.append(policy.replicas(view(second, ongoing=ongoing, ready=sizes[-1])))
    # Recorded at 13 s, sent at 21 s, and ordered after 30 s without a break.
    assert set(sizes[:51]) == {2}
    assert sizes[51] > 2
