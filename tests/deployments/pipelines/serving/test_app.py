"""A pipeline over HTTP: the protocol, its own paths, and its errors."""

import asyncio
import re
import socket
import time
from dataclasses import replace
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
import pytest_asyncio
import yaml

from autoscaler.reports import ReplicaReport
from autoscaler.worker import WorkerError
from deployments.errors import StartError
from deployments.pipelines.core.steps import Stage
from deployments.pipelines.planning.division_table import DivisionTable
from deployments.pipelines.serving import autoscaler as autoscaler_module
from deployments.pipelines.serving import service as service_module
from deployments.pipelines.serving.app import PipelineApp
from deployments.pipelines.serving.autoscaler import PipelineAutoscaler
from deployments.pipelines.serving.config import (
    load_pipeline_file,
    parse_args,
    parse_user_config,
)
from deployments.pipelines.serving.server import serve_pipeline
from deployments.pipelines.serving.service import PipelineService
from policy.batcher.requests import Refusal
from policy.errors import InfeasibleError
from policy.load_lateness import LoadLatenessCurve
from policy.profile import Profile
from tests.support.pipelines.configs import config
from tests.support.waiting import until


def make_service(user_config=None, **changes):
    args = config(**changes)["applications"][0]["args"]
    return PipelineService(parse_args(args), parse_user_config(user_config))


@pytest_asyncio.fixture
async def service(monkeypatch):
    monkeypatch.setattr(service_module, "COUNT_EVERY_S", 0.005)
    made = make_service({"sla": {"response_time_ms": 5000}})
    await made.start()
    yield made
    await made.close()


@pytest_asyncio.fixture
async def client(service: PipelineService):
    transport = httpx.ASGITransport(PipelineApp(service, "0"))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as made:
        yield made


def body(*rows):
    data = np.ravel(rows).tolist()
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [len(rows), 3], "data": data}]}


INFER = "/v2/models/twice/infer"


async def test_tokens_close_the_pipelines_own_paths_too(client, service):
    await service.configure(parse_user_config({"access": {"tokens": []}}))
    for path in ("/sojourn/pipeline", "/sojourn/policy", "/metrics", "/v2"):
        assert (await client.get(path)).status_code == 401
    assert (await client.post(INFER, json=body([1, 2, 3]))).status_code == 401
    assert (await client.get("/v2/health/ready")).status_code == 200
    assert service.pipeline.core.offered == 0


async def test_each_row_is_an_item(client):
    answer = await client.post(INFER, json=body([1, 2, 3], [4, 5, 6]))
    assert answer.status_code == 200
    (output,) = answer.json()["outputs"]
    assert output["data"] == [4, 8, 12, 16, 20, 24]
    assert output["shape"] == [2, 3]
    assert "parameters" not in answer.json()


async def test_all_rows_of_a_refused_request_are_load(client, service):
    service.pipeline.core.max_pending = 2
    answer = await client.post(INFER, json=body(*[[1, 2, 3]] * 40))
    assert answer.status_code == 503
    core = service.pipeline.core
    assert (core.offered, core.admitted, core.refused) == (40, 2, 38)
    service.count_rejected(Refusal.FULL, [(0.0, 7), (0.1, 3)], 1.0)
    assert (core.offered, core.refused) == (50, 48)


async def test_an_error_of_a_stage_names_it_and_hides_the_rest(client, service):
    answer = await client.post(INFER, json=body([1, 1, 1], [-1, 1, 1]))
    assert answer.status_code == 500
    assert answer.json() == {"error": "stage 'again' failed on this request"}
    assert not service.pipeline.core.open
    assert (await client.post(INFER, json=body([1, 1, 1]))).status_code == 200


async def test_the_pipeline_describes_itself(client, service):
    await client.post(INFER, json=body([1, 2, 3], [4, 5, 6]))
    await until(lambda: service.last_minute.growth().get("completed") == 2)
    content = (await client.get("/sojourn/pipeline")).json()
    minute = content["last_minute"]
    assert (minute["answered"], minute["late"], minute["failed"]) == (2, 0, 0)
    assert content["requests"]["completed"] == 2
    assert [stage["name"] for stage in content["stages"]] == ["doubler", "again"]
    assert [stage["items"] for stage in content["stages"]] == [2, 2]
    assert content["bottleneck"] == "doubler"
    assert content["measured_ms"]["50"] > 0
    assert content["scaling"] is None
    assert sum(stage["budget_ms"] for stage in content["stages"]) == pytest.approx(5000)
    assert (await client.head("/sojourn/pipeline")).content == b""


async def test_the_percentiles_of_the_last_seconds_end_with_the_load(client, service):
    """They stayed for ever."""
    service.pipeline.core.response_times.append((time.monotonic() - 11, 5.0))
    assert (await client.get("/sojourn/pipeline")).json()["measured_ms"] == {}
    assert "measured_response_time_seconds{" not in (await client.get("/metrics")).text


async def test_a_deadline_and_an_sla_that_cannot_be_met(client, service):
    answer = await client.post(INFER, json=body([1, 2, 3]), headers={"X-Request-Timeout-Ms": "0.5"})
    assert answer.status_code == 504
    for late, status in (("refuse", 504), ("serve", 200)):
        content = {"sla": {"response_time_ms": 0.5}, "limits": {"late": late}}
        await service.configure(parse_user_config(content))
        assert (await client.post(INFER, json=body([1, 2, 3]))).status_code == status


@pytest.mark.parametrize(
    ("datatype", "result", "said"),
    [
        ("INT8", "too_large", "INT8 expected, got 300"),
        ("BYTES", "text", "BYTES expected, got str"),
        ("FP32", "again", "() expected, got (3,)"),
    ],
)
async def test_a_pipeline_whose_example_has_other_outputs_does_not_start(datatype, result, said):
    configs = "tests.support.pipelines.configs"
    service = make_service(
        steps=[{"stage": {"code": f"{configs}:{result}", "place": "loop"}}],
        outputs=[{"name": "y", "datatype": datatype}],
        example=f"{configs}:example",
    )
    with pytest.raises(StartError, match=re.escape(f"output 'y': {said}")):
        await service.start()


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("too_large", "output 'y': INT8 expected, got 300"),
        ("no_array", "the pipeline returned something else than its outputs"),
    ],
)
async def test_a_result_that_is_not_the_outputs_counts_as_a_failure(result, said):
    service = make_service(
        steps=[{"stage": {"code": f"tests.support.pipelines.configs:{result}", "place": "loop"}}],
        outputs=[{"name": "y", "datatype": "INT8"}],
    )
    await service.start()
    transport = httpx.ASGITransport(PipelineApp(service, "0"))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.post(INFER, json=body([1, 2, 3]))
    await service.close()
    assert (answer.status_code, answer.json()["error"]) == (500, said)
    core = service.pipeline.core
    assert (core.failed, core.completed, [*core.response_times]) == (1, 0, [])


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


async def test_a_port_that_is_in_use_is_named_before_a_worker_starts(tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump(config()))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = load_pipeline_file(path).model_copy(update={"http_port": port})
        with pytest.raises(StartError, match=f"port {port} of 127.0.0.1: Address already in use"):
            await serve_pipeline(file, print)


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
