"""The bystanders' own client, against servers that answer well and badly."""

import asyncio
import json
import socketserver
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from benchmarks.resilience.load import Bystanders, Connection, Load, Target, request_bytes
from benchmarks.resilience.tally import Outcome
from tests.support.waiting import LIMIT_S

Answer = Callable[[bytes], bytes]


def target_at(port: int) -> Target:
    return Target("127.0.0.1", port, "m", 0.5, 99)


def http(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


@asynccontextmanager
async def connected(answer: Answer) -> AsyncIterator[Connection]:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await read_head(reader):
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            writer.write(answer(await reader.readexactly(length)))
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    transport, connection = await loop.create_connection(Connection, "127.0.0.1", port)
    try:
        yield connection
    finally:
        transport.close()
        await ended.wait()
        server.close()


async def read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


@pytest.mark.parametrize("body_bytes", [0, 600_000])
async def test_a_request_and_its_answer_are_whole(body_bytes: int) -> None:
    async with connected(lambda body: http(body)) as connection:
        for value in (1.25, 2.5):
            status, body = await connection.ask(request_bytes(target_at(1), value, body_bytes))
            assert status == 200
            assert json.loads(body)["inputs"][0]["data"] == [value]
            assert len(body) >= body_bytes
        assert connection.unexpected == 0


async def test_a_second_answer_is_seen() -> None:
    async with connected(lambda _: http(b"one") + http(b"two")) as connection:
        assert (await connection.ask(request_bytes(target_at(1), 1.0)))[1] == b"one"
        assert connection.unexpected == 1


async def test_a_closed_connection_is_no_answer() -> None:
    async with connected(lambda _: b"") as connection:
        asyncio.get_running_loop().call_soon(connection.close)
        with pytest.raises(ConnectionResetError):
            await connection.ask(request_bytes(target_at(1), 1.0))
        assert connection.closed


def test_who_moves_to_another_target_leaves_its_connections() -> None:
    with answering() as first, answering() as second:
        clients = Bystanders(target_at(first.port), Load(rate_per_s=500, idle_clients=0))
        clients.start()
        assert first.answered.wait(LIMIT_S)
        clients.target = target_at(second.port)
        assert second.answered.wait(LIMIT_S)
        assert first.left.wait(LIMIT_S)
        clients.end()
        assert {one.outcome for one in clients.requests} == {Outcome.RIGHT}


class Echo(socketserver.StreamRequestHandler):
    """Answers each request of a connection with the value that it asks to echo."""

    server: "Answering"

    def handle(self) -> None:
        while head := self.read_head():
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            (tensor,) = json.loads(self.rfile.read(length))["inputs"]
            self.wfile.write(http(json.dumps({"outputs": [{"data": tensor["data"]}]}).encode()))
            self.server.answered.set()
        self.server.left.set()

    def read_head(self) -> bytes:
        lines = b""
        while (line := self.rfile.readline()).strip():
            lines += line
        return lines


class Answering(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Echo)
        self.port = self.server_address[1]
        self.answered = threading.Event()
        self.left = threading.Event()


@contextmanager
def answering() -> Iterator[Answering]:
    with Answering() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
