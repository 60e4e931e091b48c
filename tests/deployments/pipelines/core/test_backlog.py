"""The work ahead of a new request, in pipelines that divide."""

import pytest

from deployments.pipelines.core.steps import Each, Ensemble, Stage, Switch
from tests.support.pipelines.machine import Machine


def named(*names):
    return [Stage(lambda x: x, name) for name in names]


def test_an_item_in_a_rare_branch_is_one_request():
    rare, common, last = named("rare", "common", "last")
    steps = [Switch(lambda v: v == "rare", {True: rare, False: common}), last]
    machine = Machine(steps, {"rare": 5.0, "common": 1.0, "last": 1.0})
    for number in range(2000):
        machine.run(until_s=0.01 * number)
        machine.submit("rare" if number == 500 else "common", machine.now_s + 0.1)
    machine.run()
    assert machine.core.expected_ms() == 2.0
    machine.submit("rare")
    assert machine.core.expected_ms() == pytest.approx(3.0)  # it is ahead at the last stage
    for _ in range(4):
        machine.submit("common", machine.now_s + 0.1)
    assert machine.core.refused == 0


def test_what_a_switch_chooses_is_learned_anew():
    a, b = named("a", "b")
    machine = Machine([Switch(lambda v: v, {0: a, 1: b})], {"a": 1.0, "b": 1.0})
    for key, requests in ((0, 1000), (1, 3000)):
        for _ in range(requests):
            machine.submit(key)
        machine.run()
    for _ in range(100):
        machine.submit(1)
    assert machine.core.expected_ms() > 0.9 * 100


def test_branches_that_a_request_passes_together_are_not_added_up():
    *branches, last = named(*"abcdef")
    machine = Machine([Ensemble(branches), last], dict.fromkeys("abcdef", 10.0))
    for number in range(4):
        machine.submit(number)
    assert machine.core.expected_ms() == pytest.approx(4 * 10 + 10 + 10)


def test_elements_are_one_request_together():
    part, last = named("part", "last")
    machine = Machine([Each(part), last], {"part": 1.0, "last": 5.0})
    for _ in range(300):
        machine.submit(range(10))
    machine.run()
    for _ in range(4):
        machine.submit(range(10))
    # 40 elements of 1 ms, or 4 requests of 5 ms; then the stages themselves.
    assert machine.core.expected_ms() == pytest.approx(40 + 5, rel=0.05)


def test_a_branch_that_nothing_enters_for_long_has_no_share_and_no_error():
    part, last = named("part", "last")
    machine = Machine([Each(part), last], {"part": 1.0, "last": 5.0})
    for _ in range(600_000):
        machine.core.backlog.count(machine.core.graph.entry, 0, 0)
    machine.submit(range(10))
    assert 5 <= machine.core.expected_ms() <= 5 + 10 * 5
