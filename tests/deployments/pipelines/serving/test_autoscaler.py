"""The autoscaler of a pipeline that runs: its plans, and when it makes others."""

import asyncio
from dataclasses import replace
from unittest.mock import Mock

import httpx
import pytest

from autoscaler.reports import ReplicaReport
from autoscaler.worker import WorkerError
from deployments.pipelines.core.steps import Stage
from deployments.pipelines.planning.division_table import DivisionTable
from deployments.pipelines.serving import autoscaler as autoscaler_module
from deployments.pipelines.serving.app import PipelineApp
from deployments.pipelines.serving.autoscaler import PipelineAutoscaler
from deployments.pipelines.serving.config import parse_args, parse_user_config
from deployments.pipelines.serving.service import PipelineService
from policy.errors import InfeasibleError
from policy.load_lateness import LoadLatenessCurve
from policy.profile import Profile
from tests.support.pipelines.configs import config, make_service
from tests.support.waiting import until

SHARES = (0.0,) * len(LoadLatenessCurve.MULTIPLES)
CURVE = LoadLatenessCurve(90.0, SHARES, overload_levels=(0.5,) * len(LoadLatenessCurve.OVERLOADS))
DIVISION, BUDGETS_MS = {"doubler": 1, "again": 1}, {"doubler": 60.0, "again": 40.0}
TABLE = DivisionTable(
    (90.0,), (DIVISION,), (BUDGETS_MS,), {"doubler": 1.0, "again": 1.0}, CURVE, 120.0
)


@pytest.mark.parametrize(("at_start", "solved_first"), [(None, []), (300, [300])])
async def test_the_workers_are_planned_for_the_sla_that_is_configured(
    monkeypatch, at_start, solved_first
):
    solved: list[float] = []

    async def plan(autoscaler, steps, sla, counts_refusals):
        if sla.response_time_ms < 1:
            raise InfeasibleError("too short")
        solved.append(sla.response_time_ms)
        return TABLE

    def within(response_time_ms):
        return parse_user_config({"sla": {"response_time_ms": response_time_ms}})

    monkeypatch.setattr(PipelineAutoscaler, "_solve", plan)
    args = config(autoscaling={"max_workers": 2})["applications"][0]["args"]
    service = PipelineService(parse_args(args), at_start and within(at_start))
    await service.start()
    assert solved == solved_first
    await service.configure(within(100))  # the default: it is solved all the same
    for _ in range(2):
        await service.configure(within(700))
    with pytest.raises(InfeasibleError):
        await service.configure(within(0.5))
    assert solved == [*solved_first, 100, 700]
    assert service.autoscaler.sla.response_time_ms == 700
    assert service.user_config.sla.response_time_ms == 700
    await service.close()


@pytest.mark.slow
async def test_the_stages_are_resized_as_decided_and_the_decisions_are_readable(monkeypatch):
    monkeypatch.setattr(autoscaler_module, "PERIOD_S", 0.001)
    service = make_service(
        {"sla": {"response_time_ms": 5000}}, autoscaling={"max_workers": 4, "standbys": "auto"}
    )
    scaler, decide = service.autoscaler.scaler, service.autoscaler.scaler.decide
    decided = [ValueError("this time"), {"doubler": 3}, {"doubler": 1}]
    sizes: list[int] = []

    def decide_as_told(now_s):
        decide(now_s)
        found = decided.pop(0) if decided else {"doubler": 1}
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(scaler, "decide", decide_as_told)
    objectives = Mock()
    monkeypatch.setattr(service.pipeline, "resize", lambda stage, workers: sizes.append(workers))
    monkeypatch.setattr(service.pipeline, "use_objective", objectives)
    await service.start()
    planned = service.autoscaler.table  # refusals are not counted yet
    assert planned.divisions[-1] == {"doubler": 3, "again": 1}
    await until(lambda: sizes == [3, 1])
    objectives.assert_called_with("doubler", scaler.stages["doubler"].objective)
    transport = httpx.ASGITransport(PipelineApp(service, "0"))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        content = (await client.get("/sojourn/autoscaler")).json()
        described = (await client.get("/sojourn/pipeline")).json()
    newest = content["stages"]["doubler"]["newest"]
    assert newest["replicas"] == described["scaling"]["workers_needed"]["doubler"] == 1
    assert newest["reason"].startswith("hold 1: ")
    budgets_ms = {stage["name"]: stage["budget_ms"] for stage in described["stages"]}
    assert budgets_ms == pytest.approx(planned.budgets_ms[0])
    report = ReplicaReport.from_floats("one", 1e9, service.autoscaler.report())
    assert report.curve.sla_rate_per_s == planned.rates_per_s[-1]
    capacity_per_s = 1e3 * report.full_batch_size / report.full_batch_ms
    assert capacity_per_s == pytest.approx(planned.capacity_per_s)
    assert (report.settings.standbys, report.settings.retries) == (0, 5)
    await until(lambda: service.autoscaler.table is not planned)
    assert service.autoscaler.table == planned  # by the worker process: few are refused
    await service.close()


async def test_a_plan_for_another_sla_is_not_replaced_by_one_for_the_sla_before(monkeypatch):
    monkeypatch.setattr(autoscaler_module, "PERIOD_S", 0.001)
    monkeypatch.setattr(autoscaler_module, "_PLAN_AGAIN_S", 0.0)
    asked: list[float] = []
    solved = asyncio.Event()

    async def plan(autoscaler, steps, sla, counts_refusals):
        asked.append(sla.response_time_ms)
        if len(asked) == 3:
            await solved.wait()
        return TABLE

    monkeypatch.setattr(PipelineAutoscaler, "_solve", plan)
    service = make_service({"sla": {"response_time_ms": 300}}, autoscaling={"max_workers": 4})
    await service.start()
    await until(lambda: asked == [300, 300])
    changing = asyncio.create_task(
        service.configure(parse_user_config({"sla": {"response_time_ms": 700}}))
    )
    await until(lambda: len(asked) == 3)
    core = service.pipeline.core
    core.offered += 1
    await until(lambda: service.autoscaler.scaler._offered == core.offered)  # it decides on
    solved.set()
    await changing
    await until(lambda: len(asked) == 4)
    assert asked == [300, 300, 700, 700]
    assert service.autoscaler.sla.response_time_ms == 700
    await service.close()


async def test_refusals_are_counted_while_late_requests_are_refused_and_not_while_served(
    monkeypatch,
):
    monkeypatch.setattr(autoscaler_module, "PERIOD_S", 0.001)
    monkeypatch.setattr(autoscaler_module, "_PLAN_AGAIN_S", 0.0)
    counted: list[bool] = []

    async def plan(autoscaler, steps, sla, counts_refusals):
        counted.append(counts_refusals)
        return TABLE

    monkeypatch.setattr(PipelineAutoscaler, "_solve", plan)
    served = {"limits": {"late": "serve"}}
    service = make_service(served, autoscaling={"max_workers": 4})
    await service.start()
    core = service.pipeline.core
    core.offered += 1
    await until(lambda: service.autoscaler.scaler._offered == core.offered)
    assert counted == [False]
    await service.configure(parse_user_config({}))
    await until(lambda: counted == [False, True])
    await service.configure(parse_user_config(served))
    await until(lambda: counted == [False, True, False])
    await service.close()


async def test_a_plan_counts_no_refusals_where_no_workers_keep_the_sla_with_them(
    monkeypatch, caplog
):
    monkeypatch.setattr(autoscaler_module, "PERIOD_S", 0.001)
    monkeypatch.setattr(autoscaler_module, "_PLAN_AGAIN_S", 0.0)
    counted: list[bool] = []

    async def plan(autoscaler, steps, sla, counts_refusals):
        counted.append(counts_refusals)
        if counts_refusals:
            raise InfeasibleError("3 do not keep it")
        return replace(TABLE)

    monkeypatch.setattr(PipelineAutoscaler, "_solve", plan)
    service = make_service({}, autoscaling={"max_workers": 4})
    await service.start()
    first = service.autoscaler.table
    await until(lambda: service.autoscaler.table is not first)
    core, stages = service.pipeline.core, service.pipeline.stages
    for _ in range(3):  # it decides on, and plans no more
        core.offered += 1
        await until(lambda: service.autoscaler.scaler._offered == core.offered)
    assert counted == [False, True, False]
    second = service.autoscaler.table
    stages[0] = replace(stages[0], profile=Profile("m", "d", [9.0, 9.1, 9.2, 9.3]))
    await until(lambda: service.autoscaler.table is not second)
    assert counted == [False, True, False, True, False]
    said = [record for record in caplog.records if record.name == "sojourn.pipelines"]
    assert {record.getMessage() for record in said} == {
        "3 do not keep it; the plan counts no refusals"
    }
    assert not any(record.exc_info for record in said)
    await service.close()


async def test_a_plan_whose_process_died_is_made_again(monkeypatch):
    monkeypatch.setattr(autoscaler_module, "PERIOD_S", 0.001)
    monkeypatch.setattr(autoscaler_module, "_PLAN_AGAIN_S", 0.0)
    asked: list[bool] = []

    async def plan(autoscaler, steps, sla, counts_refusals):
        asked.append(counts_refusals)
        if len(asked) in (2, 4):
            raise WorkerError("it died")
        return TABLE

    monkeypatch.setattr(PipelineAutoscaler, "_solve", plan)
    service = make_service({}, autoscaling={"max_workers": 4})
    await service.start()
    await until(lambda: asked == [False, True, True])
    await service.configure(parse_user_config({"limits": {"late": "serve"}}))
    await until(lambda: asked == [False, True, True, False, False])
    await service.close()


@pytest.mark.parametrize("change", ["profile", "fan-out", None])
async def test_another_profile_or_fan_out_is_planned_again(monkeypatch, change):
    monkeypatch.setattr(autoscaler_module, "PERIOD_S", 0.001)
    monkeypatch.setattr(autoscaler_module, "_PLAN_AGAIN_S", 0.0)
    asked: list[list[Stage]] = []
    counted: list[bool] = []
    again = asyncio.Event()

    async def plan(autoscaler, steps, sla, counts_refusals):
        asked.append(steps)
        counted.append(counts_refusals)
        if len(asked) == 3:
            await again.wait()
        return TABLE

    monkeypatch.setattr(PipelineAutoscaler, "_solve", plan)
    service = make_service({}, autoscaling={"max_workers": 4})
    await service.start()
    await until(lambda: len(asked) == 2)
    core = service.pipeline.core
    stages = service.pipeline.stages
    if change == "profile":
        slower = Profile("m", "d", [9.0, 9.1, 9.2, 9.3])
        stages[0] = replace(stages[0], profile=slower)
    else:
        items = {"doubler": 1.5 if change else 1.1, "again": 1.0}
        monkeypatch.setattr(core.backlog, "items_per_request", lambda: items)
    if change:
        await until(lambda: len(asked) == 3)
        latest_ms = asked[-1][0].batch_profile.latency_ms[0]
        assert latest_ms == (9.0 if change == "profile" else 1.0)
        core.offered += 1
        await until(lambda: service.autoscaler.scaler._offered == core.offered)  # it decides on
        again.set()
    core.offered += 1
    await until(lambda: service.autoscaler.scaler._offered == core.offered)
    assert counted == [False, True, True][: 3 if change else 2]
    await service.close()
