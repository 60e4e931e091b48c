import asyncio
import contextlib

import httpx
import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deployments.access.tokens import hash_token
from deployments.config.user_config import parse_user_config
from deployments.http.protocol import InferenceProtocol
from tests.support.http.raw_requests import INFER, post, read_answer, read_json
from tests.support.models.doubles_service import USER_CONFIG, body, serving

WAYS = pytest.mark.parametrize(
    "http", [HttpToolsProtocol, InferenceProtocol], ids=["asgi", "short way"]
)


def token(name, **more):
    """Return a token whose secret is its name."""
    return {"name": name, "hash": hash_token(name), **more}


STATS = "/v2/models/doubles/stats"
TOKENS = [
    token("alice"),
    token("ops", scopes=["operations"]),
    token("slow", requests_per_s=0.001, burst=2),
]


@contextlib.asynccontextmanager
async def closed_service(http, tokens=TOKENS):
    async with (
        serving(http=http, access={"tokens": tokens}) as (service, _, port),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", verify=False) as client,
    ):
        yield service, client


def bearer(secret):
    return {"Authorization": f"Bearer {secret}"}


@WAYS
async def test_only_tokens_for_inference_may_infer(http):
    async with closed_service(http) as (service, client):
        seen = []
        for headers in ({}, bearer("mallory"), {"Authorization": "Basic YTpi"}, bearer("ops")):
            answer = await client.post(INFER, json=body((1, 2)), headers=headers)
            seen.append((answer.status_code, answer.headers["www-authenticate"]))
            assert list(answer.json()) == ["error"]
            assert "x-request-id" in answer.headers
        realm = 'Bearer realm="sojourn"'
        assert seen == [
            (401, realm),
            (401, realm + ', error="invalid_token"'),
            (401, realm),
            (403, realm + ', error="insufficient_scope", scope="inference"'),
        ]
        # Strangers are no load, for which replicas would be started, and teach nothing about the
        # cost of an answer.
        assert service.batcher.rows.offered == 0
        assert service.event_loop_meter.refused == 4
        # Nor are they the model's failures, which those over the short way were.
        (stats,) = (await client.get(STATS, headers=bearer("alice"))).json()["model_stats"]
        assert stats["inference_stats"]["fail"]["count"] == 0
        answer = await client.post(INFER, json=body((1, 2)), headers=bearer("alice"))
        assert answer.json()["outputs"][0]["data"] == [2, 4]
        assert service.access.admitted == {"alice": 2}
        assert service.access.denied == {401: 3, 403: 1}


@WAYS
async def test_a_rate_is_refused_with_the_time_to_come_back(http):
    async with closed_service(http) as (service, client):
        statuses = []
        for _ in range(4):
            answer = await client.post(INFER, json=body((1, 2)), headers=bearer("slow"))
            statuses.append(answer.status_code)
        assert statuses == [200, 200, 429, 429]
        assert 900 < int(answer.headers["retry-after"]) <= 1000
        assert answer.headers["x-sojourn-reason"] == "rate_limit"
        assert "0.001 requests per second" in answer.json()["error"]
        assert service.batcher.rows.offered == 2


async def test_probes_need_no_token_and_everything_else_does():
    async with closed_service(InferenceProtocol) as (_, client):
        for path in ("/v2/health/live", "/v2/health/ready"):
            assert (await client.get(path)).status_code == 200
        metadata = ("/v2", "/v2/models/doubles", "/v2/models/doubles/ready")
        operations = ("/sojourn/policy", "/sojourn/example")
        for paths, right, wrong in ((metadata, "alice", "ops"), (operations, "ops", "alice")):
            for path in paths:
                assert (await client.get(path)).status_code == 401
                assert (await client.get(path, headers=bearer(wrong))).status_code == 403
                assert (await client.get(path, headers=bearer(right))).status_code == 200
        # They tell no end, or need a question.
        assert (await client.get("/sojourn/events", headers=bearer("alice"))).status_code == 403
        assert (await client.post("/sojourn/plan", headers=bearer("alice"))).status_code == 403
        assert (await client.get("/nowhere")).status_code == 401
        assert (await client.get("/nowhere", headers=bearer("alice"))).status_code == 404


@WAYS
@pytest.mark.parametrize(
    "rest", ["Content-Length: 1000\r\n\r\nits start", "Transfer-Encoding: chunked\r\n\r\n5\r\n"]
)
async def test_a_stranger_is_denied_before_the_body(http, rest):
    async with closed_service(http) as (_, client):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(f"POST {INFER} HTTP/1.1\r\nHost: x\r\n{rest}".encode())
        head, _ = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 401")
        if "chunked" in rest:  # they may never end
            assert b"\r\nconnection: close\r\n" in head
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


@WAYS
async def test_without_tokens_pages_of_other_sites_are_denied_on_loopback(http):
    async with closed_service(http) as (service, client):
        service.access.local_only = True
        await service.configure(parse_user_config(USER_CONFIG))
        pages = (
            {"Origin": "https://evil.example"},
            {"Host": "rebound.example"},
            {"Sec-Fetch-Site": "cross-site"},
        )
        for headers in pages:
            for path in (INFER, "/v2/repository/index", "/sojourn/plan"):
                answer = await client.post(path, json=body((1, 2)), headers=headers)
                assert answer.status_code == 403
                assert "no pages of other sites" in answer.json()["error"]
            assert (await client.get("/sojourn/events", headers=headers)).status_code == 403
        assert service.batcher.rows.offered == 0
        own = {"Origin": str(client.base_url)}
        assert (await client.post(INFER, json=body((1, 2)), headers=own)).status_code == 200
        service.access.local_only = False
        assert (await client.post(INFER, json=body((1, 2)), headers=pages[0])).status_code == 200


@WAYS
async def test_a_token_claims_no_higher_priority_than_it_may(http):
    async with closed_service(http, tokens=[token("low", highest_priority=2)]) as (service, client):
        for headers, more, status in (
            ({"X-Request-Priority": "1"}, {}, 403),
            ({}, {"parameters": {"priority": 1}}, 403),
            ({"X-Request-Priority": "2"}, {"parameters": {"priority": 2}}, 200),
            ({}, {}, 200),
        ):
            content = body((1, 2), **more)
            answer = await client.post(INFER, json=content, headers={**bearer("low"), **headers})
            assert answer.status_code == status
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(post(b"{", "Authorization: Bearer low", "X-Request-Priority: 1", length=1000))
        assert (await read_json(reader))[0] == 403, "before its body has come"
        writer.close()
        assert service.batcher.rows.offered == 2
        assert service.access.denied == {403: 3}
