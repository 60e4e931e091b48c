"""The replica's HTTP app over a real service: a small model behind the real batcher."""

import asyncio
import logging

import httpx
import pytest

from deployments.config.user_config import parse_user_config
from deployments.http.app import InferenceApp
from tests.support.models.doubles_service import POLICY, body, make_service


@pytest.fixture
async def service():
    async with make_service() as made:
        yield made


@pytest.fixture
async def client(service):
    transport = httpx.ASGITransport(app=InferenceApp(service, "9.9"))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as made:
        yield made


INFER = "/v2/models/doubles/infer"


async def test_server_metadata_and_health(client):
    assert (await client.get("/v2")).json() == {
        "name": "sojourn",
        "version": "9.9",
        "extensions": [
            "binary_tensor_data",
            "model_configuration",
            "schedule_policy",
            "statistics",
        ],
    }
    assert (await client.get("/v2/health/live")).json() == {"live": True}
    assert (await client.get("/v2/health/ready")).status_code == 200


async def test_model_metadata_and_readiness(client):
    metadata = (await client.get("/v2/models/doubles")).json()
    assert metadata == {
        "name": "doubles",
        "versions": ["1"],
        "platform": "python",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
    }
    assert (await client.get("/v2/models/doubles/versions/1")).json() == metadata
    ready = await client.get("/v2/models/doubles/versions/1/ready")
    assert ready.json() == {"name": "doubles", "ready": True}


async def test_policy_endpoint_explains_the_policy_in_force(client):
    await client.post(INFER, json=body((1, 2)))
    content = (await client.get("/sojourn/policy")).json()
    assert content["sla"] == {"response_time_ms": 50, "percentile": 95}
    assert content["sla_in_words"] == "95% of requests within 50 ms"
    assert content["control_limit"] >= 1
    assert {**content["rows"], "late": 0} == {
        "offered": 1,
        "refused": 0,
        "completed": 1,
        "answered": 1,
        "late": 0,
        "failed": 0,
        "deadline_missed": 0,
        "expired": 0,
    }
    assert sum(content["batches_started"].values()) == 1


@pytest.mark.parametrize(
    ("method", "path", "status", "problem"),
    [
        ("GET", "/", 404, "there is no path '/';"),
        ("GET", f"/v3/{'x' * 70}/end", 404, f"'/v3/{'x' * 70}/end'"),
        ("GET", "/v2/systemsharedmemory/status", 404, "shared memory is not supported"),
        ("POST", "/v2/cudasharedmemory/region/r/register", 404, "shared memory is not supported"),
        ("POST", "/v2/repository/models/doubles/load", 404, "cannot be loaded or unloaded"),
        ("GET", "/v2/models/other/config", 404, "no model 'other'"),
        ("POST", "/v2/models/doubles/stats", 405, "must be GET or HEAD, not 'POST'"),
        ("GET", "/v2/models/doubles/versions/2", 404, "has no version '2'; its version is '1'"),
        ("GET", INFER, 405, "must be POST, not 'GET'"),
        ("POST", "/v2", 405, "must be GET or HEAD, not 'POST'"),
        ("POST", INFER, 400, "not valid JSON"),
    ],
)
async def test_errors_have_the_form_of_the_protocol(client, method, path, status, problem):
    answer = await client.request(method, path)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert problem in answer.json()["error"]


async def test_the_error_of_a_failing_model_reveals_no_internals_and_its_log_names_the_request(
    client, caplog
):
    with caplog.at_level(logging.ERROR):
        good, bad = await asyncio.gather(
            client.post(INFER, json=body((1, 1))),
            client.post(INFER, json=body((13, 13)), headers={"X-Request-Id": "mine-7"}),
        )
    assert good.status_code == 200
    assert (bad.status_code, bad.json()) == (500, {"error": "the model failed on this request"})
    (shown,) = [line for line in caplog.messages if "Traceback" in line]
    assert shown.startswith("model 'doubles' failed on request mine-7 (rows: 1)\nTraceback")


async def test_changing_the_sla_loses_no_request(client, service):
    pending = [asyncio.ensure_future(client.post(INFER, json=body((n, n)))) for n in range(5)]
    sla = {"response_time_ms": 20, "percentile": 90}
    limits = {"late": "serve"}
    await service.configure(parse_user_config({"sla": sla, "policy": POLICY, "limits": limits}))
    assert [(await answer).status_code for answer in pending] == [200] * 5
    content = (await client.get("/sojourn/policy")).json()
    assert content["sla_in_words"] == "90% of requests within 20 ms"


@pytest.mark.parametrize("path", ["/v2/", "/v2/models/doubles//", "/v2/models/doubl%65s"])
async def test_a_path_may_end_in_slashes_and_contain_escapes(client, path):
    assert (await client.get(path)).status_code == 200
    assert (await client.post("/v2/models/d%6fubles/infer/", json=body((1, 2)))).status_code == 200


@pytest.mark.parametrize("path", ["/v2", "/v2/models/doubles/ready", "/v3"])
async def test_head_is_get_without_the_body(client, path):
    sent = []

    async def send(message):
        sent.append(message)

    get = await client.get(path, headers={"X-Request-Id": "a"})
    await client._transport.app(  # type: ignore[attr-defined]
        {"type": "http", "method": "HEAD", "path": path, "headers": [(b"x-request-id", b"a")]},
        None,
        send,
    )
    start, end = sent
    assert start["status"] == get.status_code
    assert dict(start["headers"]) == dict(get.headers.raw)
    assert end["body"] == b""


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("GET", INFER, "POST"), ("HEAD", INFER, "POST"), ("PUT", "/v2/health/live", "GET, HEAD")],
)
async def test_a_wrong_method_gets_the_allowed_ones(client, method, path, allow):
    answer = await client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allow)


@pytest.mark.parametrize("path", ["/v2", "/v3", INFER])
async def test_the_request_id_is_returned_with_responses_and_errors(client, path):
    answer = await client.get(path, headers={"X-Request-ID": "mine-7"})
    assert answer.headers.get_list("x-request-id") == ["mine-7"]
    made = {(await client.get(path)).headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
