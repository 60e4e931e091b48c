"""The divisions of all rates, and what they say of one stage."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.steps import Each, Stage
from deployments.pipelines.planning.division_table import DivisionTable
from deployments.pipelines.planning.scaling import solve_divisions
from deployments.pipelines.planning.sizing import plan_pipeline
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

SLA = ServiceLevelObjective(60.0, 99.0)
ALLOWED = SLA.late_share_allowed
REQUESTS = 10_000


def stage(name, fixed_ms, size=4, place="process"):
    latency_ms = [fixed_ms + 0.5 * batch for batch in range(1, size + 1)]
    profile = Profile("m", "d", latency_ms)
    return Stage(abs, name, batch_size=size, place=place, profile=profile)


STEPS = [stage("light", 1.0), Each(stage("heavy", 8.0), expected_items=2)]


def running(table, steps, rate_per_s):
    """Return the workers of each stage that run at a rate of the requests."""
    return {
        name: table.pool(name, ALLOWED).replicas_needed(items * rate_per_s, ALLOWED)
        for name, items in compile_steps(steps).items_per_request().items()
    }


@pytest.fixture(scope="module")
def table():
    return solve_divisions(STEPS, SLA, max_workers=6, requests=REQUESTS)


def test_a_shortage_in_one_stage_is_not_paid_for_in_the_others(table):
    assert table.divisions[0] == {"light": 1, "heavy": 1}
    assert table.divisions[-1] == {"light": 1, "heavy": 5}
    assert max(sum(division.values()) for division in table.divisions) == 6


def test_what_runs_at_a_rate_is_what_a_plan_for_it_finds(table):
    heavy = table.pool("heavy", ALLOWED)
    for rate_per_s in np.geomspace(20.0, table.rates_per_s[-1], 12):
        plan = plan_pipeline(STEPS, rate_per_s, SLA, requests=REQUESTS)
        assert running(table, STEPS, rate_per_s) == plan.workers
        assert 1 - heavy.lost_share(2 * rate_per_s, plan.workers["heavy"]) <= plan.service_level


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_what_runs_is_planned_where_much_is_refused(seed):
    random = np.random.default_rng(seed)
    fixed_ms, sizes = random.uniform(0.5, 8.0, 3), random.choice([1, 4, 8, 16], 3).tolist()
    drawn = map(stage, "abc", fixed_ms, sizes)
    steps = [*drawn][: random.integers(1, 4)]
    tight_ms = random.uniform(1.4, 3.0) * sum([one.profile.latency_ms[-1] for one in steps])
    sla = ServiceLevelObjective(tight_ms, random.choice([95.0, 99.0]))
    table = solve_divisions(steps, sla, 8, requests=40_000)
    rates_per_s = random.uniform(0.3 * table.rates_per_s[0], table.rates_per_s[-1], 4)
    for rate_per_s in rates_per_s:
        plan = plan_pipeline(steps, rate_per_s, sla, requests=40_000)
        assert running(table, steps, rate_per_s) == plan.workers
        assert plan.service_level >= sla.least_level


def test_what_costs_no_less_and_carries_less_is_left_out():
    profiles = {"one": [12.0], "many": [20.0 + 6 * size for size in range(1, 9)], "last": [8.0]}
    steps = [
        Stage(abs, name, batch_size=len(ms), profile=Profile("m", "d", ms))
        for name, ms in profiles.items()
    ]
    sla = ServiceLevelObjective(150.0, 99.0)
    found = solve_divisions(steps, sla, 4, requests=REQUESTS, counts_refusals=False)
    assert found.divisions == ({"one": 1, "many": 1, "last": 1}, {"one": 2, "many": 1, "last": 1})


def test_what_cannot_be_scaled():
    with pytest.raises(InvalidInputError, match="at least 2, one for each stage, not 1"):
        solve_divisions(STEPS, SLA, 1)
    pinned = replace(stage("heavy", 8.0), cpus=[*os.sched_getaffinity(0)][:1] * 2)
    few = solve_divisions([STEPS[0], pinned], SLA, 6, requests=REQUESTS)
    assert few.divisions[-1]["heavy"] == 2
    with pytest.raises(InfeasibleError, match="no number of workers"):
        solve_divisions(STEPS, ServiceLevelObjective(5.0, 99.0), 6, requests=REQUESTS)


class TestOneStage:
    TABLE = DivisionTable(
        (10.0, 20.0, 30.0, 40.0, 80.0),
        ({"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 2}, {"a": 4, "b": 2}, {"a": 4, "b": 3}),
        ({"a": 60.0, "b": 40.0},) * 5,
        {"a": 1.0, "b": 2.0},
    )

    @given(rate_per_s=st.floats(0.01, 80.0), name=st.sampled_from("ab"))
    def test_it_has_the_workers_of_the_first_division_that_carries_the_rate(self, rate_per_s, name):
        pool, items = self.TABLE.pool(name, ALLOWED), self.TABLE.items_per_request[name]
        carrying = (
            division[name]
            for highest, division in zip(self.TABLE.rates_per_s, self.TABLE.divisions, strict=True)
            if highest >= rate_per_s * (1 - 1e-9)
        )
        workers = next(carrying)
        assert pool.replicas_needed(items * rate_per_s, ALLOWED) == workers
        carried_per_s = workers * pool.rate_within_sla_per_s(ALLOWED, workers)
        assert carried_per_s >= items * rate_per_s * (1 - 1e-9)
        assert pool.replicas_needed(carried_per_s, ALLOWED) == workers

    @given(rate_per_s=st.floats(1.0, 1e4), replicas=st.integers(1, 30))
    def test_beyond_the_table_all_is_proportional(self, rate_per_s, replicas):
        pool = self.TABLE.pool("b", ALLOWED)
        if rate_per_s > 160:
            assert pool.share_of_workers(rate_per_s) == pytest.approx(3 * rate_per_s / 160)
        taken = min(1.0, replicas * pool.rate_within_sla_per_s(ALLOWED, replicas) / rate_per_s)
        assert pool.lost_share(rate_per_s, replicas) == pytest.approx(1 - 0.99 * taken)
        if replicas > 3:
            assert pool.rate_within_sla_per_s(ALLOWED, replicas) == pytest.approx(160 / 3)


@pytest.mark.slow
def test_more_pipelines_help_unless_a_stage_has_all_its_replicas():
    most = {"heavy": 3}
    table = solve_divisions(STEPS, SLA, 4, max_replicas=most, requests=REQUESTS)
    assert table.divisions[-1]["heavy"] == 3
    assert table.curve is None
    table = solve_divisions(STEPS, SLA, 1, max_replicas={"heavy": 99}, requests=REQUESTS)
    assert table.divisions[-1]["light"] == 1
    curve = table.curve
    assert curve.sla_rate_per_s == table.rates_per_s[-1] < table.capacity_per_s
    assert curve.late_share(curve.sla_rate_per_s) <= ALLOWED
    assert curve.service_level(2 * curve.sla_rate_per_s) == pytest.approx(0.99 / 2)
    assert math.isclose(table.capacity_per_s, 4e3 / 3.0)
    with pytest.raises(InvalidInputError, match="at least 1, one for each stage"):
        solve_divisions(STEPS, SLA, 0, max_replicas=most)
