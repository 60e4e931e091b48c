"""The division of workers and of the response time, against trying everything."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.steps import Each, Ensemble, Stage, Switch
from deployments.pipelines.planning import sizing
from deployments.pipelines.planning.scaling import solve_divisions
from deployments.pipelines.planning.sizing import plan_pipeline
from deployments.pipelines.planning.tandem import simulate
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.tables.solving import TableSolver

REQUESTS = 20_000


def stage(name, fixed_ms, per_item_ms=0.5, size=8, energy=False):
    sizes = np.arange(1, size + 1)
    energy_mj = 100.0 + 10.0 * sizes if energy else None
    profile = Profile("m", "d", fixed_ms + per_item_ms * sizes, energy_mj)
    return Stage(abs, name, batch_size=size, profile=profile)


def percentile_ms(stages, workers, rate_per_s):
    named = {part.name: count for part, count in zip(stages, workers, strict=True)}
    try:
        times_ms = simulate(stages, rate_per_s, named, requests=REQUESTS).response_ms
    except InfeasibleError:
        return np.inf
    return np.percentile(times_ms, 99)


@pytest.mark.parametrize(("limit_ms", "costs"), [(45.0, (1, 1, 1)), (35.0, (1, 5, 2))])
def test_the_plan_costs_what_an_oracle_that_tries_all_finds(limit_ms, costs):
    rate_per_s = 900.0
    stages = [stage("a", 0.2, 2.0, 1), stage("b", 5.0), stage("c", 3.0, 2.0, 4)]
    sla = ServiceLevelObjective(limit_ms, 99.0)
    named = {part.name: cost for part, cost in zip(stages, costs, strict=True)}
    plan = plan_pipeline(stages, rate_per_s, sla, named, requests=REQUESTS)
    oracle = min(
        np.dot(workers, costs)
        for workers in itertools.product(range(1, 9), repeat=3)
        if np.dot(workers, costs) <= plan.cost
        and percentile_ms(stages, workers, rate_per_s) <= limit_ms
    )
    assert plan.cost == oracle
    assert plan.percentile_ms <= limit_ms
    assert plan.service_level >= 0.99
    assert sum(plan.budgets_ms.values()) == pytest.approx(limit_ms)


def test_the_power_is_that_of_the_batches():
    stages = [stage("a", 0.1, 0.1, 1, energy=True), stage("b", 0.1, 0.1, 1, energy=True)]
    plan = plan_pipeline(stages, 300.0, ServiceLevelObjective(25.0, 99.0), requests=REQUESTS)
    assert plan.mean_power_w == pytest.approx(2 * 300.0 * 0.110, rel=0.03)


def test_a_solved_policy_takes_the_least_power_within_the_budget_of_its_stage():
    saving = replace(stage("saving", 5.0, energy=True), policy="smdp")
    sla = ServiceLevelObjective(80.0, 99.0)
    greedy = plan_pipeline([stage("saving", 5.0, energy=True)], 200.0, sla, requests=REQUESTS)
    plan = plan_pipeline([saving], 200.0, sla, requests=REQUESTS)
    assert plan.workers == greedy.workers
    assert plan.least_power == {"saving": ServiceLevelObjective(80.0, 99.0)}
    assert plan.mean_power_w < 0.7 * greedy.mean_power_w
    assert greedy.percentile_ms < plan.percentile_ms <= 80.0
    table = solve_divisions([saving], sla, 1, requests=REQUESTS)
    assert table.objective("saving", 200.0) == plan.least_power["saving"]


def test_policies_with_which_the_stages_miss_the_sla_together_are_left_out(monkeypatch):
    late = BatchingPolicy.from_control_limit(8, 8, 500.0)
    monkeypatch.setattr(TableSolver, "lookup", lambda solver, rate_per_s: late)
    saving = replace(stage("saving", 5.0, energy=True), policy="smdp")
    plan = plan_pipeline([saving], 20.0, ServiceLevelObjective(80.0, 99.0), requests=REQUESTS)
    assert plan.least_power == {}
    assert plan.percentile_ms <= 80.0


def test_workers_move_where_they_help_more_at_the_same_cost():
    ms = {(1, 1): 100.0, (2, 1): 70.0, (1, 2): 75.0, (3, 1): 58.0, (2, 2): 40.0}
    sla = ServiceLevelObjective(60.0, 99.0)
    found = sizing.cheap_division(lambda it: ms.get(it, 59.0), sla, (1, 1), (9, 9), (1.0, 1.0))
    assert found == (2, 2)


def test_where_plenty_of_workers_are_refused_too_much_no_others_are_tried():
    asked = []

    def answered(division):
        asked.append(division)
        return 1e-3 * sum(division), (1, 2, 3)  # each worker helps a little

    sla, least = ServiceLevelObjective(60.0, 99.0), (1, 1, 1)
    found = sizing.division_despite_refusals(answered, sla, least, (9, 9, 9), (1.0, 1.0, 1.0))
    assert found == least
    assert asked == [least, (9, 9, 9)]


def test_what_reaches_each_stage():
    steps = [
        stage("first", 1.0),
        Ensemble([stage("left", 1.0), []]),
        Switch(abs, {0: Each(stage("many", 1.0), expected_items=4), 1: []}, {0: 0.25, 1: 0.75}),
    ]
    found = compile_steps(steps).items_per_request()
    assert found == {"first": 1.0, "left": 1.0, "many": 1.0}


def test_a_stage_on_the_event_loop_has_one_worker():
    light = Stage(abs, "light", place="loop", profile=stage("p", 2.0, 0.0, 1).profile)
    stages = [stage("heavy", 10.0), light]
    sla = ServiceLevelObjective(100.0, 99.0)
    plan = plan_pipeline(stages, 400.0, sla, requests=REQUESTS)
    assert plan.workers["light"] == 1
    assert plan.loads["light"].utilization == pytest.approx(0.8, abs=0.03)
    with pytest.raises(InfeasibleError, match="limited to 1 serve 500 items/s, not 501"):
        plan_pipeline(stages, 501.0, sla, requests=REQUESTS)
