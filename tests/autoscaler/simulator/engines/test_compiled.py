"""The compiled engine's side of Python: what it hands to the kernel."""

import numpy as np
import pytest

from autoscaler.simulator.engines.compiled import rules_of
from autoscaler.simulator.scenario import Scenario
from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

#: What is counted, or chosen from a list; all else is measured.
WHOLE = {"has_loop": "bool"} | dict.fromkeys(
    ("max_queue_rows", "concurrency", "retries", "routing"), "int"
)


@pytest.mark.parametrize("number", [int, float])
def test_whole_numbers_do_not_have_the_kernel_compiled_again(number):
    """An SLA of 100 ms, and not 100.0, once cost 20 s."""
    latency_ms = np.array([2.0, 3.0])
    scenario = Scenario(
        Profile("m", "d", latency_ms, 10 + latency_ms, idle_power_w=number(1)),
        ServiceLevelObjective(number(100), number(99)),
        np.array([1, 2, 3]),
        batching=BatchingPolicy.from_control_limit(1, 2, None),
    )
    rules = rules_of(scenario.replica_model(), number(5))
    scalars = {name: value for name, value in rules._asdict().items() if np.ndim(value) == 0}
    kinds = {name: type(value).__name__ for name, value in scalars.items()}
    assert kinds == {**dict.fromkeys(scalars, "float"), **WHOLE}
