"""Policies where the event loop works beside the device."""

import numpy as np
import pytest

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.event_loop import EventLoopCosts
from policy.load_lateness import solve_load_lateness_curve
from policy.objective import ServiceLevelObjective, Weights
from policy.optimization import solve
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.table import source_hash

FAST_MS = 0.025 + 0.001 * np.arange(1, 17)
COSTLY_EVENT_LOOP = EventLoopCosts(0.08, 0.15, shares_cpu=False)
FAST = Profile("mlp", "d", FAST_MS, event_loop=COSTLY_EVENT_LOOP)


@pytest.mark.parametrize("objective", [Weights(), ServiceLevelObjective(20, 99)])
def test_a_batch_that_costs_the_event_loop_150_us_waits_for_company(objective):
    """The device takes 26 µs, so that by itself it would start each request alone."""
    rate = 6000.0
    alone = solve(Profile("mlp", "d", FAST_MS), rate, Weights())
    assert alone.policy.control_limit == 1
    with pytest.raises(InfeasibleError, match="event loop"):
        evaluate(FAST, alone.policy, rate)
    solution = solve(FAST, rate, objective)
    assert solution.policy.control_limit > 1
    assert solution.evaluation.response_percentile_ms(99) <= 20


def test_the_control_limit_is_that_of_least_cost():
    rate = 7000.0
    solution = solve(FAST, rate, Weights())
    costs = []
    for limit in range(3, 9):
        try:
            policy = BatchingPolicy.from_control_limit(limit, 16)
            costs.append(evaluate(FAST, policy, rate).mean_response_ms)
        except InfeasibleError:
            costs.append(np.inf)
    assert solution.average_cost == pytest.approx(min(costs), rel=1e-9)


def test_the_methods_for_the_device_alone_are_refused():
    with pytest.raises(InvalidInputError, match="method: must be auto"):
        solve(FAST, 1000.0, Weights(), method="policy_iteration")


@pytest.mark.slow
def test_the_rate_within_the_sla_is_bound_by_the_slower_stage():
    objective = ServiceLevelObjective(20, 99)
    curve = solve_load_lateness_curve(FAST, objective, 256, admit_within_ms=20)
    assert 0.9 * FAST.capacity_per_s < curve.sla_rate_per_s < FAST.capacity_per_s
    # The event loop passes on no more; if nothing were refused by time, all would be late.
    assert curve.service_level(1.5 * curve.sla_rate_per_s) == pytest.approx(0.99 / 1.5, abs=1e-3)
    assert curve.late_share(1.5 * curve.sla_rate_per_s) > 0.99
    device = solve_load_lateness_curve(Profile("mlp", "d", FAST_MS), objective, 256)
    assert device.sla_rate_per_s > 10 * curve.sla_rate_per_s


@pytest.mark.slow
def test_the_rate_within_the_sla_counts_an_event_loop_on_the_same_cpu():
    objective = ServiceLevelObjective(20, 99)
    serial = Profile("mlp", "d", FAST_MS, event_loop=EventLoopCosts(0.08, 0.15, shares_cpu=True))
    curve = solve_load_lateness_curve(serial, objective, 256)
    same = solve_load_lateness_curve(serial.serial(), objective, 256)
    assert curve == same
    assert curve.sla_rate_per_s < serial.capacity_per_s < FAST.capacity_per_s


def test_tables_of_other_event_loops_have_other_names():
    objective = ServiceLevelObjective(20, 99)
    event_loops = [None, COSTLY_EVENT_LOOP, EventLoopCosts(0.08, 0.15, shares_cpu=True)]
    names = {
        source_hash(Profile("mlp", "d", FAST_MS, event_loop=event_loop), objective)
        for event_loop in event_loops
    }
    assert len(names) == 3
