import asyncio
import hashlib
import json
import threading

import httpx

from deployments.config.user_config import AccessConfig
from deployments.http.hosted_app import HostedApp
from deployments.http.protocol import InferenceProtocol
from deployments.modelstore.errors import FetchError, StoreFullError, UnknownModelError
from tests.support.models.doubles_service import listening
from tests.support.models.hosted_models import hosted, user_config
from tests.support.waiting import until

BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
TOKEN_FOR_INFERENCE = "inference-token"


def client_of(models):
    transport = httpx.ASGITransport(models.app)
    return httpx.AsyncClient(transport=transport, base_url="http://replica")


async def infer(client, path):
    response = await client.post(f"/v2/models/{path}/infer", json=BODY)
    answer = response.json()
    if response.status_code != 200:
        return response.status_code
    return answer["model_name"], answer["model_version"], answer["outputs"][0]["data"][0]


async def test_each_model_answers_under_its_name_and_version():
    async with hosted("a", "b") as models, client_of(models) as client:
        assert await infer(client, "a") == ("a", "1", 1)
        assert await infer(client, "b") == ("b", "1", 1)
        assert await infer(client, "b/versions/1") == ("b", "1", 1)
        assert await infer(client, "b/versions/2") == 404
        assert await infer(client, "c") == 404
        assert (await client.get("/v2/models/b")).json()["name"] == "b"
        models_answer = await client.get("/v2/models")
        assert models_answer.json() == {"models": ["a", "b"]}
        head = await client.head("/v2/models")
        assert head.headers["content-length"] == models_answer.headers["content-length"]
        assert (await client.get("/v2/models/b/ready")).json() == {"name": "b", "ready": True}
        assert (await client.get("/v2/health/ready")).status_code == 200
        policy = (await client.get("/sojourn/policy")).json()
        assert (policy["model"], policy["models"]["b"]["model"]) == ("a", "b")
        assert [row["name"] for row in policy["repository"]] == ["a", "b"]


async def test_a_line_of_the_log_names_the_model_that_its_request_is_for(caplog):
    """It named the first model, whatever the request was for."""
    caplog.set_level("INFO", "sojourn.requests")
    async with hosted("a", "b") as models, client_of(models) as client:
        for name in ("b", "a"):
            assert (await client.post(f"/v2/models/{name}/infer", json={})).status_code == 400
    logged = [json.loads(one) for one in caplog.messages if "request_failed" in one]
    assert [line["model"] for line in logged] == ["b", "a"]


async def test_the_index_lists_all_models_or_those_that_are_ready():
    async with hosted("a", "b", on_demand=True) as models, client_of(models) as client:
        rows = (await client.post("/v2/repository/index")).json()
        told = [(row["name"], row["version"], row["state"]) for row in rows]
        assert told == [("a", "1", "READY"), ("b", "1", "UNAVAILABLE")]
        ready = (await client.post("/v2/repository/index", json={"ready": True})).json()
        assert [row["name"] for row in ready] == ["a"]
        for wrong in (b"{", b"[]"):
            answer = await client.post("/v2/repository/index", content=wrong)
            assert answer.status_code == 400
        answer = await client.get("/v2/repository/index")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_a_model_that_cannot_be_loaded_on_demand():
    errors = {
        UnknownModelError("b@1: not there"): 404,
        FetchError("the remote answers 500"): 500,
        StoreFullError("b: needs 5 bytes"): 503,
    }
    for error, status in errors.items():
        async with hosted("a", "b", on_demand=True) as models, client_of(models) as client:
            models.errors["b", "1"] = [error]
            assert await infer(client, "b") == status
            assert await infer(client, "a") == ("a", "1", 1)


async def test_on_demand_a_request_loads_its_model_and_is_answered_however_long_that_takes():
    strict = {"sla": {"response_time_ms": 500, "percentile": 95}, "limits": {"late": "refuse"}}
    async with hosted("a", "b", on_demand=True) as models, client_of(models) as client:
        await models.reconciler.configure(user_config(b=strict))
        models.load_gates["b", "1"] = threading.Event()
        asked = [asyncio.create_task(infer(client, "b")) for _ in range(3)]
        await until(lambda: ("b", "1") in models.loads)
        await asyncio.sleep(0.55)  # longer than the SLA allows
        models.load_gates["b", "1"].set()
        assert await asyncio.gather(*asked) == 3 * [("b", "1", 1)]
        assert models.loads.count(("b", "1")) == 1


async def test_strangers_load_nothing():
    async with hosted("a", "b", on_demand=True) as models, client_of(models) as client:
        digest = hashlib.sha256(TOKEN_FOR_INFERENCE.encode()).hexdigest()
        access = {"tokens": [{"name": "client", "hash": f"sha256:{digest}"}]}
        await models.reconciler.configure(
            user_config().model_copy(update={"access": AccessConfig.model_validate(access)})
        )
        assert await infer(client, "b") == 401
        assert (await client.post("/v2/repository/index")).status_code == 401
        assert models.loads == [("a", "1")]
        client.headers["authorization"] = f"Bearer {TOKEN_FOR_INFERENCE}"
        assert (await client.post("/v2/repository/index")).status_code == 403
        assert await infer(client, "b") == ("b", "1", 1)


async def test_the_short_way_follows_a_takeover(monkeypatch):
    async with hosted("a", "b") as models:
        hosted_app = HostedApp(models.app)
        monkeypatch.setattr(InferenceProtocol, "hosted", hosted_app)
        async with (
            listening(models.app, InferenceProtocol) as (_, port),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
        ):
            assert await infer(client, "a") == ("a", "1", 1)
            await (await models.reconciler.configure(user_config(a={"version": "2"})))
            assert await infer(client, "a") == ("a", "2", 2)
            assert await infer(client, "b") == ("b", "1", 1)
            assert InferenceProtocol.hosted.app.service.bodies.used_bytes == 0
            second = models.repository.first
            second.batcher.core.drain()
            assert await infer(client, "a") == 503
            assert second.batcher.rows.refused == 1
