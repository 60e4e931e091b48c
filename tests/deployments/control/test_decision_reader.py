"""Reading the autoscaler's log at most once a second, without blocking the event loop."""

import asyncio
import threading
from typing import Any

import orjson
import pytest

from autoscaler.scaled_deployments import log_key
from deployments.control import decision_reader
from deployments.control.decision_reader import DecisionReader, replicas_in

LOG = {"newest": {"replicas": 2}, "decisions": [{"replicas": 2}]}


async def test_before_the_first_decision_the_log_is_empty() -> None:
    content = await DecisionReader("shop", "Model", lambda key: None).content()
    assert content["application"] == "shop"
    assert content["newest"] is None
    assert content["decisions"] == []


async def test_the_log_of_this_deployment_is_read() -> None:
    kept = {log_key("shop", "Model"): orjson.dumps(LOG)}
    assert await DecisionReader("shop", "Model", kept.get).content() == LOG
    assert await DecisionReader("shop", "Other", kept.get).content() != LOG


@pytest.mark.parametrize(
    ("content", "replicas"),
    [
        ({"newest": {"replicas": 3, "target_replicas": 2}}, 3),
        ({"newest": {"replicas": 3, "target_replicas": 2}, "dry_run": True}, 2),
        ({"newest": {"replicas": 0}}, 1),
        ({"newest": None}, 1),
        ({}, 1),
    ],
)
def test_the_newest_decision_tells_how_many_replicas_there_are(
    content: dict[str, Any], replicas: int
) -> None:
    assert replicas_in(content) == replicas


async def test_the_log_is_read_once_a_second_however_many_requests_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[str] = []

    def read(key: str) -> bytes:
        reads.append(key)
        return orjson.dumps(LOG)

    reader = DecisionReader("shop", "Model", read)
    await asyncio.gather(*(reader.content() for _ in range(20)))
    assert len(reads) == 1
    monkeypatch.setattr(decision_reader, "READ_PERIOD_S", 0.0)
    await reader.content()
    assert len(reads) == 2


async def test_nobody_waits_long_for_a_store_that_hangs_and_it_is_asked_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Ray's does without the GCS: the replica's own periodic work goes on."""
    monkeypatch.setattr(decision_reader, "READ_TIMEOUT_S", 0.01)
    monkeypatch.setattr(decision_reader, "READ_PERIOD_S", 0.0)
    result = threading.Event()
    reads: list[str] = []

    def read(key: str) -> bytes:
        reads.append(key)
        assert result.wait(60)
        return orjson.dumps(LOG)

    reader = DecisionReader("shop", "Model", read)
    for _ in range(5):
        assert (await asyncio.wait_for(reader.content(), 30))["newest"] is None
    assert len(reads) == 1
    result.set()
    for _ in range(200):
        if await reader.content() == LOG:
            break
        await asyncio.sleep(0.01)
    assert await reader.content() == LOG
