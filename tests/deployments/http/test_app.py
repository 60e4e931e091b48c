import asyncio
import json
import logging

import httpx
import pytest
from ray.exceptions import TaskCancelledError

from deployments.http.app import InferenceApp
from tests.support.models.doubles_service import body
from tests.support.waiting import LIMIT_S


@pytest.fixture
async def client(service):
    transport = httpx.ASGITransport(app=InferenceApp(service, "9.9"))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as made:
        yield made


INFER = "/v2/models/doubles/infer"


METADATA = {
    "name": "doubles",
    "versions": ["1"],
    "platform": "python",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
}
EXTENSIONS = ["binary_tensor_data", "model_configuration", "schedule_policy", "statistics"]


async def test_the_service_describes_itself_and_drains(client, service):
    told = {
        "/v2": {"name": "sojourn", "version": "9.9", "extensions": EXTENSIONS},
        "/v2/health/live": {"live": True},
        "/v2/health/ready": {"ready": True},
        "/v2/models": {"models": ["doubles"]},
        "/v2/models/doubles": METADATA,
        "/v2/models/doubles/versions/1": METADATA,
        "/v2/models/doubles/versions/1/ready": {"name": "doubles", "ready": True},
    }
    for path, content in told.items():
        answer = await client.get(path)
        assert (answer.status_code, answer.json()) == (200, content)
    service.begin_drain()
    assert (await client.get("/v2/health/ready")).status_code == 503


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
    allowed = answer.headers.get("allow", "").replace(", ", " or ")
    assert allowed in answer.json()["error"]
    assert bool(allowed) == (status == 405)


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
    await client._transport.app(
        {"type": "http", "method": "HEAD", "path": path, "headers": [(b"x-request-id", b"a")]},
        None,
        send,
    )
    start, end = sent
    assert start["status"] == get.status_code
    assert dict(start["headers"]) == dict(get.headers.raw)
    assert end["body"] == b""


@pytest.mark.parametrize(("path", "parts"), [(INFER, 0), (INFER, 1), ("/sojourn/events", 0)])
async def test_a_client_that_leaves_while_rays_proxy_carries_its_request_is_no_error(
    service, caplog, path, parts
):
    """Ray then raises a `TaskCancelledError` where other servers say that the client left."""
    app, content, sent = InferenceApp(service, "1"), json.dumps(body([1, 2])).encode(), []
    messages = [{"type": "http.request", "body": content, "more_body": False}][:parts]
    service._model.gate.clear()

    async def receive():
        if messages:
            return messages.pop()
        raise TaskCancelledError(error_message="the client left")

    async def send(message):
        sent.append(message)

    method = "GET" if path.endswith("events") else "POST"
    scope = {"type": "http", "method": method, "path": path, "headers": []}
    try:
        with caplog.at_level(logging.WARNING):
            await asyncio.wait_for(app(scope, receive, send), LIMIT_S)
    finally:
        service._model.gate.set()
        app.console.close()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert bool(sent) == path.endswith("events"), "nobody waits for an answer"
    assert service.answers.keys() <= {(200, "")}
