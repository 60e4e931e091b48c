"""A pipeline over HTTP: the protocol, its own paths, and its errors."""

import re
import socket
import time

import httpx
import numpy as np
import pytest
import pytest_asyncio
import yaml

from deployments.errors import StartError
from deployments.pipelines.serving import service as service_module
from deployments.pipelines.serving.app import PipelineApp
from deployments.pipelines.serving.config import (
    load_pipeline_file,
    parse_user_config,
)
from deployments.pipelines.serving.server import serve_pipeline
from deployments.pipelines.serving.service import PipelineService
from policy.batcher.requests import Refusal
from tests.support.pipelines.configs import config, make_service
from tests.support.waiting import until


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


async def test_a_port_that_is_in_use_is_named_before_a_worker_starts(tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump(config()))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = load_pipeline_file(path).model_copy(update={"http_port": port})
        with pytest.raises(StartError, match=f"port {port} of 127.0.0.1: Address already in use"):
            await serve_pipeline(file, print)
