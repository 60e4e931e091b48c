import contextlib
from dataclasses import replace

import numpy as np
import pytest

from deployments.errors import RequestError
from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.steps import Each, Ensemble, Stage, Switch
from deployments.pipelines.planning.answered import answered_share
from deployments.pipelines.planning.scaling import solve_divisions
from deployments.pipelines.planning.sizing import plan_pipeline
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from tests.support.pipelines.machine import Machine

REQUESTS = 5000


def same(x):
    return x


def stage(name, fixed_ms, item_ms, size):
    profile = Profile("m", "d", fixed_ms + item_ms * np.arange(1, size + 1))
    return Stage(same, name, batch_size=size, profile=profile)


#: At twice its load, an SLA of 1.3 to 3 times the full batches; items are lists of three numbers.
A, B, C = stage("a", 5.0, 1.0, 8), stage("b", 2.0, 0.4, 16), stage("c", 6.0, 0.5, 4)
PIPELINES = {
    "one": ([A], 18.0),
    "single items": ([stage("a", 7.0, 0.0, 1)], 13.7),
    "tandem": ([A, B, C], 50.0),
    "ensemble": ([Ensemble([[A], [B, C]]), stage("d", 1.0, 0.1, 2)], 45.0),
    "each": ([Each(A, expected_items=3), C], 60.0),
    "switch": ([Switch(len, {3: [A], 2: [C]}, {3: 0.7, 2: 0.3}), B], 40.0),
}


def share_of_the_machine(steps, workers, rate_per_s, sla_ms, chances):
    """Return the share that the core answers in time, between other clients and stages."""
    random = np.random.default_rng(1)

    def staffed(step):
        if isinstance(step, Stage):
            return replace(step, workers=workers[step.name])
        if isinstance(step, Ensemble):
            return replace(step, branches=staffed(step.branches))
        if isinstance(step, Switch):
            return replace(step, branches={k: staffed(v) for k, v in step.branches.items()})
        if isinstance(step, Each):
            return replace(step, branch=staffed(step.branch))
        return [staffed(part) for part in step]

    steps = staffed(list(steps))
    stages = compile_steps(steps).stages
    machine = Machine(steps, {one.name: one.profile.latency_ms.tolist() for one in stages})
    flows = []
    gaps_s = random.exponential(1.0, REQUESTS)
    for arrival_s in np.cumsum(gaps_s / gaps_s.mean() / rate_per_s):
        machine.run(until_s=arrival_s)
        items = random.choice([3, 2], p=chances)
        with contextlib.suppress(RequestError):
            flows.append(machine.submit([0] * items, arrival_s + 1e-3 * sla_ms))
    machine.run(until_s=machine.now_s + 10)
    ended = [machine.ended[flow.id] for flow in flows]
    return sum(flow.error is None and end_s <= flow.deadline_s for end_s, flow in ended) / REQUESTS


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_the_share_is_that_of_the_running_core_at_any_load(name):
    steps, sla_ms = PIPELINES[name]
    chances = [0.7, 0.3] if name == "switch" else [1.0, 0.0]
    graph = compile_steps(steps)
    stages, per_request = graph.stages, graph.items_per_request()
    workers = {one.name: 1 for one in stages}
    most_per_s = min(one.profile.capacity_per_s / per_request[one.name] for one in stages)
    for load in (0.9, 1.2, 2.0):
        rate_per_s = load * most_per_s
        sla = ServiceLevelObjective(sla_ms, 95.0)
        requests = 20 * REQUESTS * (2 if name == "each" else 1)  # on average two items each
        share, missed = answered_share(steps, rate_per_s, workers, sla, requests=requests)
        running = share_of_the_machine(steps, workers, rate_per_s, sla_ms, chances)
        # What the switch chooses varies, too.
        assert share == pytest.approx(running, abs=0.025 if name == "switch" else 0.015)
        assert share <= 1.02 / load
        assert sum(missed) >= 0.9 * (1 - share) * REQUESTS - 5


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_a_plan_that_counts_refusals_keeps_the_sla(name):
    steps, sla_ms = PIPELINES[name]
    chances = [0.7, 0.3] if name == "switch" else [1.0, 0.0]
    sla, rate_per_s = ServiceLevelObjective(sla_ms, 95.0), 300.0
    options = {"requests": 20 * REQUESTS}
    bare = plan_pipeline(steps, rate_per_s, sla, counts_refusals=False, **options)
    plan = plan_pipeline(steps, rate_per_s, sla, **options)
    running = share_of_the_machine(steps, plan.workers, rate_per_s, sla_ms, chances)
    assert plan.service_level >= 0.95
    assert plan.service_level == pytest.approx(running, abs=0.015)
    assert plan.cost >= bare.cost
    if name == "single items":  # a request that has just begun counts in full
        assert plan.cost > bare.cost
        assert share_of_the_machine(steps, bare.workers, rate_per_s, sla_ms, chances) < 0.95


def test_no_worker_is_added_where_even_an_item_alone_is_refused():
    """An item takes 7 ms, and is admitted only if it does within 97% of the limit."""
    steps, sla = PIPELINES["single items"][0], ServiceLevelObjective(7.1, 95.0)
    plan = plan_pipeline(steps, 2.0, sla, requests=20_000)
    assert (plan.service_level, plan.workers["a"]) == (0, 1)
    with pytest.raises(InfeasibleError, match="8 do not keep"):
        solve_divisions(steps, sla, 8, requests=20_000)


def test_workers_are_added_past_one_that_helps_nothing():
    """Of items of 7 ms within 13.7 ms, 10 workers admit 8 at a time, and so do 9."""
    steps, sla = PIPELINES["single items"][0], ServiceLevelObjective(13.7, 95.0)
    plan = plan_pipeline(steps, 1099.0, sla, requests=20_000)
    assert plan.service_level >= 0.95
    workers = {"a": plan.workers["a"] - 1}
    assert answered_share(steps, 1099.0, workers, sla, requests=20_000)[0] < 0.95
