"""Stages are scaled as deployments are; in virtual time."""

import json
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.settings import AutoscalerSettings
from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.pipeline_core import PipelineCore
from deployments.pipelines.core.stage_core import stage_core
from deployments.pipelines.core.steps import Each, Stage
from deployments.pipelines.planning.division_table import DivisionTable
from deployments.pipelines.planning.stage_autoscaler import PipelineScaler
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

SLA = ServiceLevelObjective(100.0, 99.0)
#: Ten items per second and worker; one request is one item of a and two of b.
TABLE = DivisionTable(
    tuple(10.0 * n for n in range(1, 31)),
    tuple({"a": n, "b": 2 * n} for n in range(1, 31)),
    ({"a": 60.0, "b": 40.0},) * 30,
    {"a": 1.0, "b": 2.0},
)


class Driver:
    def __init__(self, start_s=0, **chosen):
        profile = Profile("m", "d", [100.0])
        a, b = (Stage(abs, name, profile=profile) for name in "ab")
        self.each = Each(b, expected_items=2)
        graph = compile_steps([a, self.each])
        self.core = PipelineCore(graph, [stage_core(stage, 1) for stage in graph.stages], 1)
        self.scaler = PipelineScaler(self.core, AutoscalerSettings(**chosen))
        self.scaler.use(TABLE, SLA)
        self.start_s, self.now_s = start_s, 1e9
        self._ordered = {stage.name: deque([1] * start_s) for stage in self.core.stages}

    def second(self, requests, items_of_b=2, refusing=None):
        core, refused = self.core, requests // 5 if refusing is not None else 0
        core.offered += requests
        core.admitted += requests - refused
        if refused:
            core.count_refused(core.stages[refusing], refused)
        each = [node.step for node in core.graph.nodes].index(self.each)
        for _ in range(requests - refused):
            core.backlog.count(each, 0, items_of_b)
        self.now_s += 1
        ordered = self.scaler.decide(self.now_s)
        for stage in core.stages:
            orders = self._ordered[stage.name]
            orders.append(ordered[stage.name])
            started = min(orders)
            stage.workers = min(max(stage.workers, started), ordered[stage.name])
            while len(orders) > self.start_s:
                orders.popleft()
        return ordered

    def decision(self, stage):
        return self.scaler.stages[stage].log.newest


@settings(max_examples=20)
@given(rate=st.integers(20, 200))
def test_a_steady_load_gets_the_workers_that_are_planned_for_its_demand(rate):
    driver = Driver()
    for _ in range(40):
        ordered = driver.second(rate)
    for name, items in (("a", 1), ("b", 2)):
        newest = driver.decision(name)
        assert newest["arrival_rate_per_s"] == pytest.approx(items * rate, rel=0.02)
        demand_per_s = newest["demand_per_s"]
        assert items * rate <= demand_per_s * 1.02 <= 1.6 * items * rate
        assert ordered[name] == newest["required_replicas"]
        assert ordered[name] == TABLE.pool(name, 0.01).replicas_needed(demand_per_s, 0.01)
        assert "demand" in newest["reason"]


def test_a_jump_is_followed_in_two_seconds():
    driver = Driver()
    for _ in range(60):
        driver.second(40)
    for _ in range(2):
        ordered = driver.second(120)
    assert ordered["a"] >= 12
    assert ordered["b"] >= 24


def test_a_stage_that_refuses_gets_more_than_planned_and_the_others_do_not():
    driver = Driver()
    for _ in range(40):
        driver.second(100, refusing=1)
    slow, other = driver.decision("b"), driver.decision("a")
    assert "0.2 of the requests are given up" in slow["reason"]
    assert slow["demand_per_s"] == pytest.approx(1.5 * 200, rel=0.05)
    assert other["demand_per_s"] < 0.9 * slow["demand_per_s"] / 2


def test_forecasts_look_as_far_ahead_as_workers_take_to_start():
    driver = Driver(start_s=20)
    for second in range(240):
        driver.second(20 + second // 2)
    assert driver.decision("a")["horizon_s"] == pytest.approx(21, abs=2)
    assert driver.decision("a")["demand_per_s"] > 140 + 20 / 2


def test_one_that_restarts_goes_on_with_what_was_learned():
    before, after = Driver(start_s=20), Driver(start_s=20)
    for second in range(240):
        before.second(20 + second // 2)
    after.scaler.load_state(json.loads(json.dumps(before.scaler.snapshot()())))
    after.now_s = before.now_s
    for driver in (before, after):
        for second in range(15):
            driver.second(140 + second // 2)
    for key in ("demand_per_s", "horizon_s"):
        assert after.decision("a")[key] == pytest.approx(before.decision("a")[key], rel=0.02)


def test_standbys_are_workers_beyond_what_the_load_needs():
    without, having = Driver(), Driver(standbys=2)
    for _ in range(60):
        few, more = without.second(40), having.second(40)
    assert having.decision("a")["standbys"] == 2
    assert more["a"] == few["a"] + 2


@settings(max_examples=15)
@given(rates=st.lists(st.integers(0, 3000), min_size=20, max_size=40))
def test_never_more_than_the_last_division(rates):
    driver = Driver()
    for rate in rates:
        ordered = driver.second(rate)
        assert all(1 <= ordered[name] <= TABLE.divisions[-1][name] for name in "ab")


def test_the_measured_fan_out_counts_and_only_for_its_stage():
    driver = Driver()
    for _ in range(60):
        driver.second(40)
    expected = (
        driver.decision("a")["arrival_rate_per_s"],
        driver.decision("b")["arrival_rate_per_s"],
    )
    for _ in range(120):
        driver.second(40, items_of_b=6)
    assert driver.decision("a")["arrival_rate_per_s"] == pytest.approx(expected[0])
    assert driver.decision("b")["arrival_rate_per_s"] == pytest.approx(3 * expected[1], rel=0.02)
    needs = {name: stage.share_of_workers for name, stage in driver.scaler.stages.items()}
    assert needs["b"] > 24 > needs["a"]
    assert 0 <= driver.scaler.stages["a"].workers - needs["a"] < 1
