"""Laws of pipelines of any shape, in virtual time, whatever becomes of their batches."""

import itertools
import math
from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.errors import BusyError, DeadlineError
from deployments.pipelines.core.errors import StageError, WorkerLostError
from deployments.pipelines.core.items import RETRY, WorkerLoss
from deployments.pipelines.core.steps import Each, Ensemble, Stage, Switch
from tests.support.pipeline_machine import Machine

#: A stage fails on multiples of this.
POISON = 13


class PoisonError(Exception):
    """A stage got poison."""


def following(x):
    """Return the next number; poison fails."""
    if x % POISON == 0:
        raise PoisonError
    return x + 1


def parity(x):
    return x % 2


def pair(x):
    return [x, x + 3] if x % 4 else []


@st.composite
def pipelines(draw):
    """Return steps of which every stage has a name of its own."""
    names = map(str, itertools.count())

    def stage(code=following):
        size, workers = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        wait_ms = draw(st.sampled_from([0.0, 2.0]))
        return Stage(code, f"s{next(names)}", batch_size=size, workers=workers, max_wait_ms=wait_ms)

    def branch(depth):
        return [step for _ in range(draw(st.integers(0, 2))) for step in any_step(depth)]

    def any_step(depth):
        kind = draw(
            st.sampled_from(["stage", "ensemble", "switch", "each"] if depth else ["stage"])
        )
        if kind == "ensemble":
            return [Ensemble([branch(depth - 1), branch(depth - 1)], sum)]
        if kind == "switch":
            return [Switch(parity, {0: branch(depth - 1), 1: branch(depth - 1)})]
        if kind == "each":
            return [stage(pair), Each(branch(depth - 1), sum, expected_items=2)]
        return [stage()]

    return [stage(), *any_step(2), *any_step(2)]


def expected(steps, x):
    """Return the result of a value; raise `PoisonError` if a stage fails on it."""
    for step in steps:
        if isinstance(step, Stage):
            x = step.code(x)
        elif isinstance(step, Ensemble):
            x = sum([expected(branch, x) for branch in step.branches])
        elif isinstance(step, Switch):
            x = expected(step.branches[x % 2], x)
        else:
            x = sum([expected(step.branch, part) for part in x])
    return x


class Unreliable(Machine):
    """Workers die, batches come too late, and code fails without naming the culprit."""

    def __init__(self, steps, random):
        super().__init__(steps, AnyLatency())
        self.random = random
        self.losses: Counter[int] = Counter()

    def outcome(self, number, batch):
        fate = self.random.random()
        if fate < 0.05:
            self.losses.update({item.flow.id for item in batch.items})
            return WorkerLoss("died")
        if fate < 0.1:
            return [RETRY] * len(batch.items)
        outcome = super().outcome(number, batch)
        if fate < 0.2 and isinstance(outcome, list):
            return [RETRY if self.random.random() < 0.5 else result for result in outcome]
        return outcome


class AnyLatency(dict):
    """A few milliseconds for each stage."""

    def __missing__(self, name):
        return 1.0 + len(name)


@settings(max_examples=80, deadline=None)
@given(steps=pipelines(), seed=st.integers(0, 2**32), count=st.integers(1, 40))
def test_each_request_has_one_end_its_own_result_or_its_own_error(steps, seed, count):
    random = Random(seed)
    machine = Unreliable(steps, random)
    flows = {}
    for value in range(count):
        machine.run(until_s=machine.now_s + random.choice([0.0, 0.001, 0.02]))
        deadline_s = machine.now_s + random.choice([0.02, 0.2, math.inf, math.inf])
        try:
            flows[value] = machine.submit(value, deadline_s)
        except (BusyError, DeadlineError):
            continue
        if random.random() < 0.1:
            machine.core.cancel(random.choice([*flows.values()]))
            machine.advance()
    machine.run()
    core = machine.core
    assert not core.open
    assert core.completed + core.failed + core.late + core.refused + core.cancelled == count
    assert len(machine.ended) == len(flows) - core.cancelled
    for stage in core.stages:
        assert (stage.waiting, stage.in_service, stage.busy) == (0, 0, 0)
    for value, flow in flows.items():
        if flow.id not in machine.ended or isinstance(flow.error, DeadlineError):
            continue
        if flow.error is None:
            assert flow.result == expected(steps, value)
            continue
        assert isinstance(flow.error, StageError)
        if isinstance(flow.error.cause, WorkerLostError):
            assert machine.losses[flow.id] >= 2
        else:
            assert isinstance(flow.error.cause, PoisonError)
            assert fails(steps, value)


def fails(steps, value):
    """Return whether a stage fails on a value."""
    try:
        expected(steps, value)
    except PoisonError:
        return True
    return False
