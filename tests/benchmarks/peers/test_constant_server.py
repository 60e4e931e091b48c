"""The service whose answers all take the same time."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from benchmarks.peers.constant_server import Echo
from tests.support.virtual_asyncio import VirtualTimeLoop


async def answer(app: Echo, method: str, *pieces: bytes) -> tuple[Any, float]:
    """Return the content of an answer, and how long it took."""
    incoming = [
        {"body": piece, "more_body": number < len(pieces)}
        for number, piece in enumerate(pieces or (b"",), start=1)
    ]
    sent: list[Mapping[str, Any]] = []

    async def receive() -> Mapping[str, Any]:
        return incoming.pop(0)

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    loop = asyncio.get_running_loop()
    started_s = loop.time()
    await app({"method": method}, receive, send)
    start, body = sent
    assert start["status"] == 200
    assert (b"content-length", str(len(body["body"])).encode()) in start["headers"]
    return orjson.loads(body["body"]), loop.time() - started_s


def answered(method: str, *pieces: bytes) -> tuple[Any, float]:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(answer(Echo("m", 0.25), method, *pieces))


def test_an_answer_is_the_echo_of_the_request_and_takes_its_time() -> None:
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1], "data": [7.5]}
    body = orjson.dumps({"inputs": [tensor]})
    echo = {"outputs": [{**tensor, "name": "output"}]}
    assert answered("POST", body) == (echo, 0.25)
    assert answered("POST", body[:9], body[9:]) == (echo, 0.25)


def test_metadata_are_told_at_once() -> None:
    content, took_s = answered("GET")
    assert [content["name"], content["inputs"][0]["name"], took_s] == ["m", "input", 0.0]
