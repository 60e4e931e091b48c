import asyncio
import json

import httpx
import pytest

from deployments.errors import BusyError
from deployments.http.app import InferenceApp
from deployments.http.console import MAX_STREAMS, Console
from tests.support.clocks.virtual_asyncio import VirtualTimeLoop
from tests.support.waiting import LIMIT_S


@pytest.fixture
async def client(service):
    app = InferenceApp(service, "1")
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as made:
        yield made
    app.console.close()


async def test_the_page_is_at_its_folder(client):
    page = await client.get("/sojourn/")
    assert page.status_code == 200
    assert "<title>Sojourn console</title>" in page.text
    assert "script-src 'self'" in page.headers["content-security-policy"]
    moved = await client.get("/sojourn")
    assert moved.status_code == 308
    assert str(httpx.URL("http://test/a/sojourn").join(moved.headers["location"])).endswith(
        "/a/sojourn/"
    )
    for method, path, status in (
        ("GET", "static/main.js", 200),
        ("GET", "static/nothing.js", 404),
        ("POST", "", 405),
        ("GET", "plan", 405),
        ("POST", "events", 405),
    ):
        assert (await client.request(method, f"/sojourn/{path}")).status_code == status


async def test_a_replica_that_stops_opens_no_stream(client, service):
    service.begin_drain()
    answer = await asyncio.wait_for(client.get("/sojourn/events"), LIMIT_S)
    assert (answer.status_code, "about to stop" in answer.text) == (503, True)


NOW = {"response_time_ms": 50, "percentile": 95, "arrival_rate_per_s": 100}


@pytest.mark.parametrize(
    ("question", "status", "problem"),
    [
        ("nonsense", 400, "the body is not valid JSON"),
        ({"now": NOW}, 400, "then: is required"),
        ({"now": NOW, "then": {**NOW, "percentile": 100}}, 400, "then.percentile: "),
        ({"now": NOW, "then": NOW, "model": "other"}, 404, "there is no model 'other'"),
        ("x" * 20_000, 413, "the body is too large"),
    ],
)
async def test_a_wrong_question_gets_an_error_of_one_line(client, question, status, problem):
    body = question if isinstance(question, str) else json.dumps(question)
    answer = await client.post("/sojourn/plan", content=body)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(problem)


class Client:
    """The other end of a stream."""

    def __init__(self):
        self.sent = []
        self.left, self.reads = asyncio.Event(), asyncio.Event()
        self.reads.set()

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        await self.reads.wait()
        self.sent.append(message)

    @property
    def events(self):
        return sum(b"data: " in message.get("body", b"") for message in self.sent)


async def no_decisions():
    return {"newest": None, "decisions": []}


class Streams:
    """A console in virtual time."""

    def __init__(self):
        self.reports = 0
        self.may_go_on = True
        self.console = Console(self._reports, no_decisions, "r", planning=dict)
        # Its clock is the loop's.
        self.console._feed._clock = asyncio.get_running_loop().time

    def _reports(self):
        self.reports += 1
        return [{"model": "m"}]

    def open(self):
        client = Client()
        return client, asyncio.create_task(
            self.console.stream(client.receive, client.send, [], lambda: self.may_go_on)
        )


def in_virtual_time(test):
    async def run():
        await test(Streams())

    def run_in_virtual_time():
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(run())

    return run_in_virtual_time


@in_virtual_time
async def test_an_event_each_second_until_the_page_is_closed(streams):
    client, task = streams.open()
    await asyncio.sleep(5.5)
    assert client.events == streams.reports == 6
    start = client.sent[0]
    assert dict(start["headers"])[b"content-type"] == b"text/event-stream"
    client.left.set()
    await asyncio.wait_for(task, 0.1)
    assert streams.console.streams == 0
    await asyncio.sleep(60)
    # Nothing is put together while nobody looks.
    assert streams.reports == 6


@in_virtual_time
async def test_streams_end_within_a_second_when_the_replica_stops_or_the_token_is_revoked(streams):
    clients = [streams.open() for _ in range(3)]
    await asyncio.sleep(3.2)
    streams.may_go_on = False
    await asyncio.sleep(1)
    assert all(task.done() for _, task in clients)
    for client, _ in clients:
        assert client.sent[-1] == {"type": "http.response.body", "body": b""}
    # The three shared what was put together.
    assert streams.reports == 4
    # Another replica has the next one.
    with pytest.raises(BusyError, match="about to stop"):
        await streams.open()[1]


@in_virtual_time
async def test_there_is_a_most_of_streams(streams):
    clients = [streams.open() for _ in range(MAX_STREAMS)]
    await asyncio.sleep(0.1)
    _, refused = streams.open()
    with pytest.raises(BusyError, match="close one of them"):
        await refused
    clients[0][0].left.set()
    await asyncio.sleep(0.1)
    client, task = streams.open()
    await asyncio.sleep(0.1)
    assert client.events == 1
    for each, _ in [*clients, (client, task)]:
        each.left.set()
    await asyncio.sleep(0.1)
