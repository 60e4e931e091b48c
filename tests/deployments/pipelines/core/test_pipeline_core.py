"""The core of a pipeline, in virtual time."""

import itertools
import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.errors import BusyError, DeadlineError, DeviceError
from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.steps import Each, Ensemble, Stage, Switch
from policy.errors import InvalidInputError
from tests.support.pipelines.machine import Machine
from tests.support.pipelines.stages import shift


def double(x):
    return 2 * x


def fail_at_seven(x):
    return x // (x % 7)


def repeat(x):
    return [x] * (x % 4)


NUMBERS = itertools.count()


def stage(code, workers, max_wait_ms):
    options = {"workers": workers, "batch_size": 3, "max_wait_ms": max_wait_ms}
    return Stage(code, f"s{next(NUMBERS)}", **options)


def stages(*codes):
    return st.builds(stage, st.sampled_from(codes), st.integers(1, 2), st.integers(0, 2))


#: A step, or a list of steps.
STEPS = st.recursive(
    stages(double, shift, fail_at_seven),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.builds(Ensemble, st.lists(inner, min_size=1, max_size=3), st.just(sum)),
        st.builds(Switch, st.just(lambda x: x % 2), st.fixed_dictionaries({0: inner, 1: inner})),
        st.tuples(stages(repeat), st.builds(Each, inner, st.just(sum))),
    ),
    max_leaves=6,
)


def value_of(step, x):
    if isinstance(step, Stage):
        return step.code(x)
    if isinstance(step, Ensemble):
        return sum([value_of(branch, x) for branch in step.branches])
    if isinstance(step, Switch):
        return value_of(step.branches[x % 2], x)
    if isinstance(step, Each):
        return sum([value_of(step.branch, part) for part in x])
    for part in step:
        x = value_of(part, x)
    return x


@given(
    step=STEPS,
    requests=st.lists(
        st.tuples(
            st.integers(0, 50),
            st.sampled_from([0.0, 0.0, 1.0, 7.0]),
            st.sampled_from([5.0, 40.0, math.inf, math.inf]),
            st.sampled_from([False, False, False, True]),
        ),
        min_size=1,
        max_size=30,
    ),
)
def test_each_request_has_its_own_result_or_one_error_and_no_stage_keeps_anything(step, requests):
    machine = Machine([step], defaultdict(lambda: 1.5))
    flows, now_s = [], 0.0
    for value, gap_ms, within_ms, leaves in requests:
        now_s += 1e-3 * gap_ms
        machine.run(until_s=now_s)
        try:
            flow = machine.submit(value, now_s + 1e-3 * within_ms)
        except (BusyError, DeadlineError):
            continue
        flows.append((value, flow))
        if leaves:
            machine.core.cancel(flow)
            machine.advance()
    machine.run()
    core = machine.core
    assert len(machine.ended) == len(flows) - core.cancelled
    assert core.completed + core.failed + core.late + core.cancelled + core.refused == len(requests)
    assert not core.open
    assert all((stage.waiting, stage.in_service, stage.busy) == (0, 0, 0) for stage in core.stages)
    for value, flow in flows:
        if flow.id not in machine.ended or isinstance(flow.error, DeadlineError):
            continue
        if flow.error is None:
            assert flow.result == value_of(step, value)
        else:
            with pytest.raises(ZeroDivisionError):
                value_of(step, value)


@pytest.mark.parametrize(
    ("step", "value", "stage", "said"),
    [
        (Switch(str, {"1": Stage(double)}), 2, "switch", "no branch '2'; the branches are '1'"),
        (Ensemble([Stage(double)], lambda results: results[9]), 1, "join", "IndexError"),
        (Each(Stage(double), max_items=10), iter(int, 1), "each", "max_items = 10"),  # endless
    ],
)
def test_errors_of_steps_are_named(step, value, stage, said):
    machine = Machine([step], {"double": 1})
    flow = machine.submit(value)
    machine.run()
    assert flow.error.stage == stage
    assert said in str(flow.error)


def test_a_stage_does_not_begin_what_the_later_ones_cannot_finish():
    machine = Machine([Stage(double), Stage(shift)], {"double": 5, "shift": 5})
    with pytest.raises(DeadlineError):
        machine.submit(0, deadline_s=0.009)
    machine.latency_ms["double"] = [12.0]
    flow, late = machine.submit(1), machine.submit(2, deadline_s=0.0195)
    machine.run()
    assert flow.result == 5
    assert isinstance(late.error, DeadlineError)
    assert machine.core.stages[0].batches == 1
    assert [stage.missed for stage in machine.core.stages] == [1, 0]


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


def test_a_refused_request_counts_for_the_stage_that_it_would_have_waited_for():
    """Twelve ms of work were ahead of it at the last stage, but ten of them while it was before."""
    machine = Machine([Stage(double), Stage(shift)], {"double": 10, "shift": 6})
    machine.submit(1)
    machine.submit(2)
    machine.run(until_s=0.011)
    with pytest.raises(BusyError, match="stage 'double' is too busy"):
        machine.submit(3, deadline_s=machine.now_s + 0.02)
    assert [stage.missed for stage in machine.core.stages] == [1, 0]


def test_the_bottleneck_of_an_idle_pipeline_is_the_slowest_stage():
    steps = [Stage(range, "expand"), Each(Stage(shift)), Stage(sum)]
    machine = Machine(steps, {"expand": 5, "shift": 1, "sum": 2})
    machine.submit(10)
    machine.run()
    assert machine.core.bottleneck().name == "shift"  # ten items of 1 ms for each request


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


def test_a_full_pipeline_refuses_at_once():
    machine = Machine([Stage(double)], {"double": 1}, max_pending=3)
    for value in range(3):
        machine.submit(value)
    with pytest.raises(BusyError, match="3 requests"):
        machine.submit(3)
    machine.run()
    machine.submit(3)


def test_many_switches_one_after_another_are_each_looked_at_once():
    steps = [Switch(abs, {0: Stage(abs, f"a{n}"), 1: Stage(abs, f"b{n}")}) for n in range(60)]
    least_ms, after_ms = compile_steps(steps).rest_ms([1.0, 2.0] * 60)
    assert least_ms == 60.0
    assert after_ms[:2] == [59.0, 59.0]
    assert after_ms[-2:] == [0.0, 0.0]


def test_the_rest_of_branches_counts_what_is_behind_their_join():
    steps = [
        Ensemble([Stage(abs, "a"), [Stage(abs, "b"), Switch(abs, {0: [], 1: Stage(abs, "c")})]]),
        Each(Stage(abs, "d")),
        Stage(abs, "e"),
    ]
    least_ms, after_ms = compile_steps(steps).rest_ms([1.0, 2.0, 4.0, 8.0, 16.0])
    assert least_ms == 2.0 + 16.0  # c may be skipped, and there may be no elements
    assert after_ms == [16.0, 16.0, 16.0, 16.0, 0.0]
