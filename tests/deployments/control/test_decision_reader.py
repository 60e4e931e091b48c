import asyncio
import threading

import orjson
import pytest

from autoscaler.scaled_deployments import log_key
from deployments.control import decision_reader
from deployments.control.decision_reader import DecisionReader, replicas_in
from tests.support.waiting import LIMIT_S

LOG = {"newest": {"replicas": 2}, "decisions": [{"replicas": 2}]}


async def test_the_log_of_this_deployment_is_read_and_is_empty_before_the_first_decision():
    kept = {log_key("shop", "Model"): orjson.dumps(LOG)}
    assert await DecisionReader("shop", "Model", kept.get).content() == LOG
    content = await DecisionReader("shop", "Other", kept.get).content()
    assert (content["application"], content["newest"], content["decisions"]) == ("shop", None, [])


@pytest.mark.parametrize(
    ("content", "replicas"),
    [
        ({"newest": {"replicas": 3, "target_replicas": 2}}, 3),
        ({"newest": {"replicas": 3, "target_replicas": 2}, "dry_run": True}, 2),
        ({"newest": {"replicas": 0}}, 1),
        ({"newest": None}, 1),
    ],
)
def test_the_newest_decision_tells_how_many_replicas_there_are(content, replicas):
    assert replicas_in(content) == replicas


async def test_the_log_is_read_once_a_second_and_nobody_waits_long_for_a_store_that_hangs(
    monkeypatch,
):
    """Ray's hangs without the GCS: the replica's own periodic work goes on."""
    monkeypatch.setattr(decision_reader, "READ_TIMEOUT_S", 0.01)
    result = threading.Event()
    reads: list[str] = []

    def read(key):
        reads.append(key)
        assert result.wait(LIMIT_S)
        return orjson.dumps(LOG)

    reader = DecisionReader("shop", "Model", read)
    contents = await asyncio.gather(*(reader.content() for _ in range(20)))
    assert {content["newest"] for content in contents} == {None}
    monkeypatch.setattr(decision_reader, "READ_PERIOD_S", 0.0)
    await reader.content()
    assert len(reads) == 1, "the first read still hangs"
    result.set()
    async with asyncio.timeout(LIMIT_S):
        while await reader.content() != LOG:
            await asyncio.sleep(0.01)
    assert len(reads) > 1
