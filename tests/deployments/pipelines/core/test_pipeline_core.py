"""The core of a pipeline, in virtual time."""

import math

import numpy as np
import pytest

from deployments.errors import BusyError, DeadlineError, DeviceError
from deployments.pipelines.core.errors import StageError
from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.steps import Each, Ensemble, Stage, Switch
from policy.errors import InvalidInputError
from tests.support.pipelines.machine import Machine


def double(x):
    return 2 * x


def shift(x):
    return x + 3


def test_each_result_returns_to_its_own_request_in_any_order():
    machine = Machine(
        [Stage(double, batch_size=4, workers=3), Stage(shift)], {"double": 5, "shift": 1}
    )
    flows = [machine.submit(value) for value in range(50)]
    machine.run()
    assert [flow.result for flow in flows] == [2 * value + 3 for value in range(50)]
    assert len({flow.id for flow in flows}) == 50


def test_nested_fan_outs_join_in_the_order_of_their_elements():
    steps = [
        Each(
            [Stage(double), Ensemble([Stage(shift), [Stage(shift, "a"), Stage(shift, "b")]], sum)]
        ),
        Switch(len, {0: [], 1: Stage(max), 3: Stage(sum, "total")}),
    ]
    machine = Machine(steps, {"double": 1, "shift": 1, "a": 1, "b": 2, "max": 1, "total": 1})
    flows = [machine.submit(value) for value in ([1, 2, 3], [5], [])]
    machine.run()

    def expected(x):
        return 2 * (2 * x) + 9

    assert flows[0].result == sum(map(expected, [1, 2, 3]))
    assert flows[1].result == expected(5)
    assert flows[2].result == []


@pytest.mark.parametrize("elements", [1, 10, 1000])
def test_one_item_may_become_many(elements):
    machine = Machine([Each(Stage(double, batch_size=32), sum)], {"double": 1})
    flow = machine.submit(range(elements))
    machine.run()
    assert flow.result == elements * (elements - 1)
    assert machine.core.stages[0].batches == math.ceil(elements / 32)


def test_an_item_with_too_many_elements_fails():
    machine = Machine([Each(Stage(double), max_items=10)], {"double": 1})
    flow = machine.submit(iter(int, 1))  # endless
    machine.run()
    assert "max_items = 10" in str(flow.error)


def test_an_error_in_one_branch_ends_its_request_and_no_other():
    steps = [Ensemble([Stage(double), Stage(lambda x: 1 / x, "invert")]), Stage(sum)]
    machine = Machine(steps, {"double": 50, "invert": 1, "sum": 1})
    good, bad, also_good = machine.submit(1), machine.submit(0), machine.submit(2)
    machine.run()
    assert (good.result, also_good.result) == (3, 4.5)
    assert isinstance(bad.error, StageError)
    assert (bad.error.stage, type(bad.error.cause)) == ("invert", ZeroDivisionError)
    assert machine.ended[bad.id][0] < machine.ended[good.id][0]
    # Its other branch waited behind the first, and never ran.
    assert machine.core.stages[0].batches == 2


def test_errors_of_switches_and_joins_are_named():
    machine = Machine(
        [Switch(str, {"1": Stage(double)}), Ensemble([Stage(shift)], lambda r: r[9])],
        {"double": 1, "shift": 1},
    )
    unknown, joined = machine.submit(2), machine.submit(1)
    machine.run()
    assert "there is no branch '2'; the branches are '1'" in str(unknown.error)
    assert isinstance(joined.error, StageError)
    assert joined.error.stage == "join"


def test_a_slow_stage_is_felt_at_the_front_and_nothing_grows():
    """At 10 times the capacity of stage 2, answers stay in time and the queues stay short."""
    machine = Machine([Stage(double), Stage(shift)], {"double": 1.0, "shift": 10.0})
    refused = longest = 0
    for step in range(5000):
        machine.run(until_s=step / 1000)
        try:
            machine.submit(step, deadline_s=step / 1000 + 0.1)
        except BusyError as error:
            refused += "stage 'shift' is too busy" in str(error)
        longest = max(longest, len(machine.core.open))
    machine.run()
    completed = [(end_s, flow) for end_s, flow in machine.ended.values() if flow.error is None]
    assert all(end_s <= flow.deadline_s for end_s, flow in completed)
    # Of what stage 2 can do in 5 s, 500, nearly all is answered: refusals do not waste capacity.
    assert len(completed) >= 490
    assert machine.core.late <= 10
    assert longest <= 11
    assert refused == machine.core.refused


def test_a_full_pipeline_refuses_at_once():
    machine = Machine([Stage(double)], {"double": 1}, max_pending=3)
    for value in range(3):
        machine.submit(value)
    with pytest.raises(BusyError, match="3 requests"):
        machine.submit(3)
    machine.run()
    machine.submit(3)


def test_a_hopeless_deadline_is_told_from_a_busy_pipeline():
    machine = Machine([Stage(double), Stage(shift)], {"double": 5, "shift": 5})
    with pytest.raises(DeadlineError):
        machine.submit(1, deadline_s=0.009)


def test_a_stage_does_not_begin_what_the_later_ones_cannot_finish():
    """A first batch that takes longer than was believed leaves the second too little time."""
    machine = Machine([Stage(double), Stage(shift)], {"double": 5, "shift": 5})
    machine.latency_ms["double"] = [12.0]
    flow, late = machine.submit(1), machine.submit(2, deadline_s=0.016)
    machine.run()
    assert flow.result == 5
    assert isinstance(late.error, DeadlineError)
    assert machine.core.stages[0].batches == 1


def test_a_client_that_leaves_in_stage_two_of_three():
    machine = Machine(
        [Stage(double), Stage(shift, workers=1), Stage(shift, "third")],
        {"double": 1, "shift": 10, "third": 1},
    )
    first, gone, last = (machine.submit(value) for value in range(3))
    machine.run(until_s=0.005)  # `first` is in stage 2, the others wait for it
    machine.core.cancel(gone)
    machine.advance()
    machine.run()
    assert (first.result, last.result) == (6, 10)
    assert machine.core.stages[1].batches == 2
    assert machine.core.cancelled == 1
    assert gone.id not in machine.ended
    assert not machine.core.open


def test_a_lost_stage_answers_what_waits_and_refuses_what_comes():
    machine = Machine([Stage(double), Stage(shift)], {"double": 1, "shift": 1})
    machine.core.stages[1].workers = 0
    flow = machine.submit(1)
    machine.run()
    machine.core.lose_stage(1, "no weights")
    machine.advance()
    assert isinstance(flow.error, DeviceError)
    with pytest.raises(DeviceError, match="no weights"):
        machine.submit(1)
    machine.core.stages[1].lost, machine.core.stages[1].workers = None, 1
    flow = machine.submit(1)
    machine.run()
    assert flow.result == 5


def test_while_a_worker_starts_only_requests_without_a_deadline_wait_for_it():
    machine = Machine([Stage(double), Stage(shift)], {"double": 1, "shift": 1})
    machine.core.stages[1].workers = 0
    flow = machine.submit(1)
    with pytest.raises(BusyError, match="stage 'shift' has no worker now"):
        machine.submit(2, deadline_s=0.1)
    machine.run()
    machine.core.stages[1].workers = 1
    machine.core.touch(1)
    machine.advance()
    machine.run()
    assert flow.result == 5


def test_one_slow_batch_does_not_refuse_all_requests_for_ever():
    """A stage measures a first batch of 5 s; under an SLA of 0.1 s no other would be admitted."""
    machine = Machine([Stage(double)], {"double": 5000.0}, known=False)
    machine.submit(1)
    machine.run()
    machine.latency_ms["double"] = [1.0]
    machine.core.refresh(machine.now_s)
    with pytest.raises(DeadlineError):
        machine.submit(2, machine.now_s + 0.1)
    machine.run(until_s=machine.now_s + 2)
    machine.core.refresh(machine.now_s)
    flow = machine.submit(3, machine.now_s + 0.1)
    machine.run()
    assert flow.result == 6


def test_the_bottleneck_is_the_stage_with_the_most_work():
    steps = [Stage(range, "expand"), Each(Stage(shift)), Stage(sum)]
    machine = Machine(steps, {"expand": 5, "shift": 1, "sum": 2})
    machine.submit(10)
    machine.run()
    assert machine.core.bottleneck().name == "shift"  # ten items of 1 ms for each request


def test_items_are_conserved():
    """Whatever comes, each request has exactly one end, and no stage keeps anything."""
    random = np.random.default_rng(1)
    steps = [
        Stage(double, workers=2, batch_size=3, max_wait_ms=2),
        Each([Stage(shift, batch_size=8), Stage(lambda x: 6 // (x % 7), "fails")]),
    ]
    steps.insert(1, Stage(lambda x: [x] * (x % 5), "repeat"))
    machine = Machine(steps, {"double": 3, "repeat": 0.1, "shift": 2, "fails": 0.3})
    flows, cancelled = [], 0
    for step in range(2000):
        machine.run(until_s=step * 3e-3)
        deadline_s = machine.now_s + random.choice([0.002, 0.02, 0.2, math.inf])
        try:
            flows.append(machine.submit(step, deadline_s))
        except (BusyError, DeadlineError):
            continue
        if random.random() < 0.05:
            machine.core.cancel(flows[-1])
            machine.advance()
            cancelled += 1
    machine.run()
    core = machine.core
    assert not core.open
    assert len(machine.ended) == len(flows) - core.cancelled
    assert core.completed + core.failed + core.late + core.refused + core.cancelled == 2000
    assert min(core.completed, core.failed, core.late, core.cancelled) > 0
    assert all((s.waiting, s.in_service, s.busy) == (0, 0, 0) for s in core.stages)


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        ([], "at least one stage"),
        ([Switch(len, {1: []})], "at least one stage"),
        ([Stage(double), Stage(double)], "two stages are called 'double'"),
        ([double], "a step is a Stage"),
    ],
)
def test_what_is_no_pipeline(steps, complaint):
    with pytest.raises(InvalidInputError, match=complaint):
        compile_steps(steps)
