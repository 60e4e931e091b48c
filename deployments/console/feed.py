"""The console's events, one per second, computed only while a page is open."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from deployments.control.background_reader import BackgroundReader
from deployments.modelstore.client import ask
from deployments.modelstore.errors import StoreError
from deployments.modelstore.names import STORE_PREFIX

Report = Mapping[str, Any]

#: Time between two events of a stream.
PERIOD_S = 1.0
#: The latest decisions, of half an hour unless they change the number of replicas.
DECISIONS_SENT = 30
#: Streams share a state of at most this age.
_FRESH_S = 0.5
#: Interval of queries to the model store, and the limit on its answer.
_STORE_PERIOD_S, _STORE_TIMEOUT_S = 5.0, 1.0
#: The largest parts of a report, which the page does not show.
_LEFT_OUT = frozenset({"profile", "start"})


class Feed:
    """The state of a replica and its fleet.

    `reports` returns what ``GET /sojourn/policy`` says of each model, the first model's first;
    `autoscaler`, the content of ``GET /sojourn/autoscaler``: the fleet's log of decisions.
    """

    def __init__(
        self,
        reports: Callable[[], Sequence[Report]],
        autoscaler: Callable[[], Awaitable[Report]],
        replica: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reports, self._autoscaler, self._clock = reports, autoscaler, clock
        self._replica = replica
        self._lock = asyncio.Lock()
        self._event, self._made_s = b"", float("-inf")
        self._store: BackgroundReader[Mapping[str, Any] | None] | None = None

    async def next(self) -> bytes:
        """Return the next event of a stream, as a server-sent event."""
        async with self._lock:
            now_s = self._clock()
            if now_s - self._made_s >= _FRESH_S:
                await self._make()
                self._made_s = now_s
        return self._event

    async def _make(self) -> None:
        fleet = await self._autoscaler()
        reports = self._reports()
        state = {
            "time_s": time.time(),
            "replica": self._replica,
            "models": [
                {key: value for key, value in report.items() if key not in _LEFT_OUT}
                | {"has_energy": bool((report.get("profile") or {}).get("energy_mj"))}
                for report in reports
            ],
            "fleet": {**fleet, "decisions": fleet["decisions"][-DECISIONS_SENT:]},
            "store": await self._store_stats(reports[0]),
        }
        self._event = b"data: %b\n\n" % orjson.dumps(state, option=orjson.OPT_SERIALIZE_NUMPY)

    async def _store_stats(self, report: Report) -> Mapping[str, Any] | None:
        socket = _store_socket(report)
        if socket is None:
            return None
        if self._store is None:
            read = partial(_ask_store, Path(socket) if socket else None)
            self._store = BackgroundReader(read, None, _STORE_PERIOD_S, self._clock)
        return await self._store.content()


def _ask_store(socket: Path | None) -> Mapping[str, Any]:
    try:
        stats: Mapping[str, Any] = ask("stats", socket_path=socket, timeout_s=_STORE_TIMEOUT_S)
    except (StoreError, OSError) as error:
        return {"error": str(error)}
    return stats


def _store_socket(report: Report) -> str | None:
    """Return the socket of the store of the model's weights; empty for the user's own store."""
    start = report.get("start") or {}
    if start.get("store_socket"):
        return str(start["store_socket"])
    return "" if str(start.get("weights") or "").startswith(STORE_PREFIX) else None
