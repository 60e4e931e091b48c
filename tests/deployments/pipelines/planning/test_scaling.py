"""The divisions of all rates, and when they are put into force."""

import asyncio
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.pipeline_core import PipelineCore
from deployments.pipelines.core.stage_core import stage_core
from deployments.pipelines.core.steps import Each, Stage
from deployments.pipelines.planning.scaling import (
    MARGIN,
    DivisionTable,
    StageScaler,
    solve_divisions,
)
from deployments.pipelines.planning.tandem import simulate
from deployments.pipelines.serving.service import PipelineAutoscaler
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from sojourn import Pipeline
from tests.support.pipelines.stages import Scale, shift
from tests.support.waiting import until

SLA = ServiceLevelObjective(60.0, 99.0)


def core_of(*names):
    graph = compile_steps([Stage(abs, name) for name in names])
    return PipelineCore(graph, [stage_core(stage, 1) for stage in graph.stages], 1)


def stage(name, fixed_ms, size=4, place="process"):
    latency_ms = [fixed_ms + 0.5 * batch for batch in range(1, size + 1)]
    profile = Profile("m", "d", latency_ms)
    return Stage(abs, name, batch_size=size, place=place, profile=profile)


STEPS = [stage("light", 1.0), Each(stage("heavy", 8.0), expected_items=2)]


@pytest.fixture(scope="module")
def table():
    return solve_divisions(STEPS, SLA, max_workers=6, requests=10_000)


@pytest.mark.slow
def test_every_division_keeps_the_sla_at_its_rate(table):
    for rate_per_s, division in zip(table.rates_per_s, table.divisions, strict=True):
        times_ms = simulate(STEPS, rate_per_s, division, requests=10_000).response_ms
        assert np.percentile(times_ms, 99) <= 60.0


def test_a_shortage_in_one_stage_is_not_paid_for_in_the_others(table):
    assert table.divisions[0] == {"light": 1, "heavy": 1}
    assert table.divisions[-1] == {"light": 1, "heavy": 5}
    assert max(sum(division.values()) for division in table.divisions) == 6


def test_what_cannot_be_scaled():
    with pytest.raises(InvalidInputError, match="at least 2, one for each stage, not 1"):
        solve_divisions(STEPS, SLA, 1)
    with pytest.raises(InfeasibleError, match="no number of workers"):
        solve_divisions(STEPS, ServiceLevelObjective(5.0, 99.0), 6, requests=10_000)


@settings(max_examples=30)
@given(loads=st.lists(st.integers(0, 40), min_size=1, max_size=60))
def test_more_at_once_and_fewer_after_the_hold(loads):
    table = DivisionTable(tuple(range(1, 31)), tuple({"a": n} for n in range(1, 31)))
    core = core_of("a")
    scaler = StageScaler(table, core, scale_down_delay_s=10.0)
    needs = [max(1, min(30, int(np.ceil(MARGIN * load)))) for load in loads]
    for second, load in enumerate(loads):
        core.offered += load
        assert scaler.decide(float(second)) == {"a": max(needs[max(0, second - 10) : second + 1])}


class TestStagesWithReplicas:
    TABLE = DivisionTable(
        (10.0, 20.0, 30.0, 40.0, 80.0),
        ({"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 2}, {"a": 4, "b": 2}, {"a": 4, "b": 3}),
        {"a": 1.0, "b": 2.0},
    )

    @given(st.floats(0.01, 80.0), st.sampled_from("ab"))
    def test_a_share_rounded_up_is_the_division(self, rate_per_s, stage):
        share = self.TABLE.share_of_workers(stage, rate_per_s)
        assert int(np.ceil(share - 1e-12)) == self.TABLE.lookup(rate_per_s)[stage]

    def test_beyond_the_table_it_is_proportional(self):
        assert self.TABLE.share_of_workers("b", 160.0) == pytest.approx(6.0)

    def test_the_measured_fan_out_counts_and_only_for_its_stage(self):
        core = core_of("a", "b")
        scaler = StageScaler(self.TABLE, core, scale_down_delay_s=0.0)
        core.offered = 15
        assert scaler.decide(0.0, MARGIN) == {"a": 1, "b": 2}
        # Three times as many items of each request as expected.
        core.offered, core.admitted = 30, 15
        core.stages[0].items, core.stages[1].items = 15, 90
        assert scaler.decide(1.0, MARGIN) == {"a": 1, "b": 3}
        needs = scaler.replica_needs("ab")
        assert (needs["a"], needs["b"]) == (pytest.approx(0.75), pytest.approx(2 + 5 / 40))

    @given(st.lists(st.integers(1, 9), min_size=200, max_size=200))
    @settings(max_examples=10)
    def test_the_items_of_a_request_approach_their_mean(self, divided):
        core = core_of("a", "b")
        scaler = StageScaler(self.TABLE, core)
        for second, elements in enumerate(divided):
            core.offered += 50
            core.admitted += 50
            core.stages[0].items += 50
            core.stages[1].items += 50 * elements
            scaler.decide(float(second))
            scaler.decide(second + 0.5)
        assert scaler.items_per_request["a"] == 1.0
        assert min(divided) <= scaler.items_per_request["b"] <= max(divided)
        assert scaler.items_per_request["b"] == pytest.approx(np.mean(divided[-20:]), abs=2.5)

    def test_a_pipeline_needs_another_replica_if_it_is_the_limit(self):
        for ends, need in ((True, 1.5), (False, 0.0)):
            table = DivisionTable((10.0, 20.0), ({"a": 1}, {"a": 2}), {}, ends)
            core = core_of("a")
            scaler = StageScaler(table, core, scale_down_delay_s=10.0)
            core.offered = 25
            scaler.decide(0.0)
            core.offered = 30
            scaler.decide(1.0)
            assert scaler.replica_needs([]) == {"": pytest.approx(need)}

    @pytest.mark.slow
    def test_a_table_ends_with_the_replicas_or_with_the_pipeline(self):
        most = {"heavy": 3}
        table = solve_divisions(STEPS, SLA, 4, max_replicas=most, requests=10_000)
        assert table.divisions[-1]["heavy"] == 3
        assert not table.ends_with_pipeline
        table = solve_divisions(STEPS, SLA, 1, max_replicas={"heavy": 99}, requests=10_000)
        assert table.divisions[-1]["light"] == 1
        assert table.divisions[-1]["heavy"] > 3
        assert table.ends_with_pipeline
        with pytest.raises(InvalidInputError, match="at least 1, one for each stage"):
            solve_divisions(STEPS, SLA, 0, max_replicas=most)


async def test_the_stages_of_a_running_pipeline_are_resized():
    table = DivisionTable((100.0, 1000.0), ({"scale": 1, "shift": 1}, {"scale": 3, "shift": 1}))
    steps = [Stage(Scale, place="thread"), Stage(shift, place="loop")]
    async with Pipeline(steps) as pipeline:
        scaler = StageScaler(table, pipeline.core, scale_down_delay_s=10.0)
        autoscaler = PipelineAutoscaler(pipeline, scaler)
        now_s = time.monotonic()

        async def resized(workers: int) -> None:
            await until(lambda: pipeline.core.stages[0].workers == workers)

        for second, requests, workers in ((2, 150, 1), (4, 400, 3), (15, 0, 1)):
            await asyncio.gather(*(pipeline.predict(v) for v in range(requests)))
            autoscaler.step(now_s + second)
            assert scaler.workers == {"scale": workers, "shift": 1}
            await resized(workers)


async def test_a_step_that_fails_is_not_the_last(monkeypatch):
    steps: list[float] = []

    def fail(now_s):
        steps.append(now_s)
        raise ValueError("this time")

    autoscaler = PipelineAutoscaler(Pipeline([Stage(shift)]), scaler=None)
    monkeypatch.setattr(autoscaler, "step", fail)
    running = asyncio.create_task(autoscaler.run(0.001))
    await until(lambda: len(steps) > 1)
    running.cancel()
