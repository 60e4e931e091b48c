"""The core of a stage, in virtual time."""

import math

import pytest

from deployments.pipelines.core.errors import WorkerLostError
from deployments.pipelines.core.items import RETRY, Flow, Item, ItemFailure, WorkerLoss
from deployments.pipelines.core.stage_core import StageCore
from policy.batching_policy import BatchingPolicy
from policy.objective import Weights
from policy.profile import Profile
from policy.tables.solving import solve_table


def item(number=0, deadline_s=math.inf):
    return Item(Flow(number, 0.0, deadline_s), value=number)


def numbers(batch):
    return [part.flow.id for part in batch.items]


def greedy(size):
    return BatchingPolicy.from_control_limit(1, size)


@pytest.mark.parametrize(("latency_ms", "longest_s"), [(10.0, 1.0), (3000.0, 3.0)])
def test_without_a_longest_wait_and_a_deadline_nothing_waits_for_ever(latency_ms, longest_s):
    core = StageCore("s", BatchingPolicy.from_control_limit(4, 4), 1, [latency_ms] * 4)
    for number in range(2):
        core.arrive(0.1 * number, item(number))
        assert core.next_batch(0.1 * number) is None
    assert core.wake_at_s == pytest.approx(longest_s)
    assert numbers(core.next_batch(core.wake_at_s)) == [0, 1]


@pytest.fixture
def batch_of_three():
    core = StageCore("s", greedy(3), workers=1)
    for number in range(3):
        core.arrive(0.0, item(number))
    return core, core.next_batch(0.0)


def test_after_a_loss_each_item_runs_once_more_alone(batch_of_three):
    core, batch = batch_of_three
    assert core.batch_ended(0.0, batch, WorkerLoss("died")) == []
    again = core.next_batch(0.0)
    assert numbers(again) == [0]
    ((lost, failure),) = core.batch_ended(0.0, again, WorkerLoss("died again"))
    assert lost.flow.id == 0
    assert str(failure) == str(ItemFailure(WorkerLostError("died again")))
    assert numbers(core.next_batch(0.0)) == [1]


@pytest.mark.parametrize(("failed", "again"), [([1], [0, 2]), ([], [0, 1, 2])])
def test_named_items_fail_and_the_others_run_again_together(batch_of_three, failed, again):
    core, batch = batch_of_three
    outcome = [ItemFailure(ValueError()) if at in failed else RETRY for at in range(3)]
    assert [part.flow.id for part, _ in core.batch_ended(0.0, batch, outcome)] == failed
    assert numbers(core.next_batch(0.0)) == again


def test_an_smdp_table_is_looked_up_at_the_rate_per_worker():
    profile = Profile("m", "d", latency_ms=[10.0, 10.5, 11.0, 11.5], energy_mj=[50.0] * 4)
    table = solve_table(profile, Weights(1.0, 10.0), rates=[50.0, 100.0, 200.0, 300.0])
    core = StageCore("s", table, workers=2, latency_ms=profile.latency_ms)
    for number in range(2000):
        core.arrive(number / 400.0, item(number))
    assert core.policy(5.0) == table.lookup(190.0)
    assert core.policy(5.0).control_limit > 1
