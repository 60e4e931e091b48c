import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from deployments.console import feed as feed_module
from deployments.console.feed import DECISIONS_SENT, Feed
from deployments.modelstore.errors import UnavailableError


class Sources:
    def __init__(self):
        self.now_s = 100.0
        self.reported = self.read = 0
        self.report = {"model": "m", "profile": {"latency_ms": [1.0]}}
        self.log: dict[str, Any] = {"newest": None, "decisions": [], "dry_run": False}
        self.feed = Feed(self._reports, self._autoscaler, "replica-1", lambda: self.now_s)

    def _reports(self):
        self.reported += 1
        return [self.report]

    async def _autoscaler(self):
        self.read += 1
        return self.log

    def decide(self, time_s, replicas):
        entry = {"time_s": time_s, "replicas": replicas}
        self.log = {**self.log, "newest": entry, "decisions": [*self.log["decisions"], entry]}


def parsed(event):
    """Return the content of an event as a browser reads it."""
    assert event.endswith(b"\n\n")
    return json.loads(event.removeprefix(b"data: "))


async def test_a_state_is_the_replicas_and_the_fleets():
    sources = Sources()
    for number in range(DECISIONS_SENT + 1):
        sources.decide(float(number), 3)
    state = parsed(await sources.feed.next())
    assert state["replica"] == "replica-1"
    # The page does not need the profile, but whether there is energy to plan with.
    assert state["models"] == [{"model": "m", "has_energy": False}]
    assert state["fleet"] == {
        "newest": {"time_s": DECISIONS_SENT, "replicas": 3},
        "decisions": sources.log["decisions"][1:],
        "dry_run": False,
    }
    assert state["store"] is None


async def test_streams_share_what_was_just_put_together():
    sources = Sources()
    assert sources.reported == sources.read == 0
    for _ in range(5):
        await sources.feed.next()
        sources.now_s += 0.09
    assert sources.reported == sources.read == 1
    sources.now_s += 0.1
    await sources.feed.next()
    assert sources.reported == sources.read == 2


@pytest.mark.parametrize(
    ("start", "sockets"),
    [
        ({"store_socket": "/run/store.sock", "weights": None}, [Path("/run/store.sock")] * 2),
        ({"store_socket": None, "weights": "store://m@1"}, [None] * 2),
        ({"store_socket": None, "weights": "weights.safetensors"}, []),
    ],
)
async def test_the_store_is_asked_now_and_then(monkeypatch, start, sockets):
    stats = {"tiers": {"host": {"used_bytes": 7}}}
    ask = mock.Mock(side_effect=[stats, *[UnavailableError("there is no store")] * 9])
    monkeypatch.setattr(feed_module, "ask", ask)
    sources = Sources()
    sources.report["start"] = start
    seen = []
    for _ in range(7):
        state = parsed(await sources.feed.next())
        assert "start" not in state["models"][0]
        seen.append(state["store"])
        sources.now_s += 1
    assert [call.kwargs["socket_path"] for call in ask.call_args_list] == sockets
    assert seen == ([stats] * 5 + [{"error": "there is no store"}] * 2 if sockets else [None] * 7)
