import asyncio
import threading

from deployments.control.background_reader import BackgroundReader
from tests.support.waiting import LIMIT_S


async def test_what_hangs_is_read_once_and_nobody_waits_long_for_it():
    """Ray's directory hangs without the GCS: the replica's own periodic work goes on."""
    result, now_s, reads = threading.Event(), 0.0, 0

    def read():
        nonlocal reads
        reads += 1
        assert result.wait(LIMIT_S)
        return "read"

    reader = BackgroundReader(read, "first", 1.0, lambda: now_s, timeout_s=0.01)
    contents = await asyncio.gather(*(reader.content() for _ in range(20)))
    assert set(contents) == {"first"}
    now_s = 1.0
    await reader.content()
    assert reads == 1, "the first read still hangs"
    result.set()
    async with asyncio.timeout(LIMIT_S):
        while await reader.content() != "read":
            await asyncio.sleep(0.01)


async def test_a_read_that_fails_as_the_replica_stops_changes_nothing_and_is_no_error(caplog):
    now_s, results = 0.0, ["read"]
    reader = BackgroundReader(lambda: results.pop(), "first", 1.0, lambda: now_s)
    assert await reader.content() == "read"
    now_s = 1.0
    # Threads and Ray end before the event loop does.
    assert await reader.content() == "read"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
