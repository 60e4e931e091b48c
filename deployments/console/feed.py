"""The console's events, one per second, computed only while a page is open."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import psutil

from deployments.modelstore.client import ask
from deployments.modelstore.errors import StoreError
from deployments.modelstore.names import STORE_PREFIX

Report = Mapping[str, Any]

#: Time between two events of a stream.
PERIOD_S = 1.0
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
        self._process = psutil.Process()
        self._lock = asyncio.Lock()
        self._event, self._made_s = b"", float("-inf")
        self._log_seen: object = None
        self._log, self._log_number = b"", 0
        self._store: Mapping[str, Any] | None = None
        self._store_asked_s = float("-inf")

    async def next(self, log_sent: int) -> tuple[bytes, int]:
        """Return the next event of a stream, as a server-sent event, and the length of its log.

        `log_sent` is the length from the previous call, or 0; the log of decisions is sent when it
        has changed.
        """
        async with self._lock:
            now_s = self._clock()
            if now_s - self._made_s >= _FRESH_S:
                await self._make(now_s)
                self._made_s = now_s
        if log_sent == self._log_number:
            return self._event, log_sent
        return self._log + self._event, self._log_number

    async def _make(self, now_s: float) -> None:
        fleet = await self._autoscaler()
        reports = self._reports()
        await self._ask_store(reports[0], now_s)
        decisions = fleet.get("decisions") or ()
        seen = (len(decisions), decisions[-1].get("time_s") if decisions else None)
        if seen != self._log_seen:
            self._log_seen = seen
            self._log_number += 1
            self._log = _event("decisions", decisions)
        self._event = _event(
            "state",
            {
                "time_s": time.time(),
                "replica": self._replica,
                "models": [
                    {key: value for key, value in report.items() if key not in _LEFT_OUT}
                    | {"has_energy": _has_energy(report)}
                    for report in reports
                ],
                "fleet": {key: value for key, value in fleet.items() if key != "decisions"},
                "store": self._store,
                "process": {
                    "memory_bytes": self._process.memory_info().rss,
                    "up_s": time.time() - self._process.create_time(),
                },
            },
        )

    async def _ask_store(self, report: Report, now_s: float) -> None:
        socket = _store_socket(report)
        if socket is None or now_s - self._store_asked_s < _STORE_PERIOD_S:
            return
        self._store_asked_s = now_s
        path = Path(socket) if socket else None
        try:
            self._store = await asyncio.to_thread(
                lambda: ask("stats", socket_path=path, timeout_s=_STORE_TIMEOUT_S)
            )
        except (StoreError, OSError) as error:
            self._store = {"error": str(error)}


def _store_socket(report: Report) -> str | None:
    """Return the socket of the store of the model's weights; empty for the user's own store."""
    start = report.get("start") or {}
    if start.get("store_socket"):
        return str(start["store_socket"])
    return "" if str(start.get("weights") or "").startswith(STORE_PREFIX) else None


def _has_energy(report: Report) -> bool:
    return bool((report.get("profile") or {}).get("energy_mj"))


def _event(name: str, content: Any) -> bytes:
    data = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
