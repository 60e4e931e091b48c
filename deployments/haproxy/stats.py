"""HAProxy's statistics of a replica: the mean time of its requests, and its refusals.

A replica cannot see what waits in HAProxy. HAProxy keeps running means of its times per server, in
whole milliseconds, and its admin socket reports them. Requests that HAProxy refused at its
concurrency limit reach no replica, but they are load: each HAProxy counts them by backend, and the
replicas of its node divide them.
"""

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import NamedTuple

from deployments.haproxy.admin_socket import ask
from deployments.haproxy.server_checks import rows_of

logger = logging.getLogger("sojourn.http")

#: In HAProxy's running means, a request weighs 1/e after 512 others (its manual says 1024). So
#: with fewer new ones, most of the mean is of older ones.
MIN_REQUESTS = 512
#: Where Ray puts the socket, unless the environment says otherwise.
_SOCKET_VARIABLE, _DEFAULT_SOCKET = "RAY_SERVE_HAPROXY_SOCKET_PATH", "/tmp/haproxy-serve/admin.sock"
_TIMEOUT_S = 0.5
#: Of the statistics, those of backends and servers.
_COMMAND = b"show stat -1 6 -1"
_OF_THIS_NODE = ("unix", "127.0.0.1:")
#: HAProxy is away for a moment when it is started again, and ends before the replicas do.
WARN_AFTER_S = 15.0


class ProxyReport(NamedTuple):
    """HAProxy's report of one replica since the report before.

    `mean_ms` is the mean time from when a request is complete in HAProxy until its answer begins
    there, earlier tries at other replicas included, over the last thousand requests or so; None:
    too few since the last one, or not known. For `outward_ms` of it HAProxy had no connection to
    the replica. `denied` is this replica's part of the requests that HAProxy refused. Of the whole
    backend, `answered` were answered, and `failed` for the clients.
    """

    mean_ms: float | None = None
    outward_ms: float = 0.0
    denied: int = 0
    answered: int = 0
    failed: int = 0


class BackendStats(NamedTuple):
    """Statistics of one replica and its backend since HAProxy started.

    HAProxy's mean of the total time is of no use: on a connection that is kept alive that begins
    with the end of the answer before, so it counts the time in which the client asked nothing.
    """

    requests: int
    mean_ms: float
    outward_ms: float
    #: Replicas of the backend: on this node, and up anywhere.
    replicas: int
    serving: int
    #: Requests of the backend: refused by HAProxy, and by the status that clients got, 2xx and 5xx.
    counts: tuple[int, ...]


def socket_path_on(node_id: str) -> Path:
    """Return the path of HAProxy's admin socket on a node: Ray puts it into a folder of its own."""
    path = Path(os.environ.get(_SOCKET_VARIABLE, _DEFAULT_SOCKET))
    return path.parent / node_id / path.name


class HaproxyStats:
    """Read HAProxy's statistics of the replica whose server's name ends with a unique id."""

    def __init__(self, server_ends_with: str, socket_path: Path) -> None:
        self._server = server_ends_with
        self._path = socket_path
        self._before: BackendStats | None = None
        self._mean_since = 0  # requests when the last mean was read
        self._denied = 0.0
        self._warned = False
        self._seen_s = time.monotonic()

    async def read(self) -> ProxyReport:
        now, before = await self._ask(), self._before
        if now is None:
            return ProxyReport()
        self._before = now
        if before is None or now.requests < before.requests:  # HAProxy has just started
            self._mean_since = now.requests
            return ProxyReport()
        denied, answered, failed = (
            max(0, new - old) for new, old in zip(now.counts, before.counts, strict=True)
        )
        self._denied += denied / max(1, now.replicas)
        whole = int(self._denied)  # fractions are kept
        self._denied -= whole
        if now.requests < self._mean_since + MIN_REQUESTS:
            return ProxyReport(None, 0.0, whole, answered, failed)
        self._mean_since = now.requests
        return ProxyReport(now.mean_ms, now.outward_ms, whole, answered, failed)

    async def nobody_serves(self) -> bool:
        """Return whether HAProxy has no replica of this backend to send requests to."""
        now = await self._ask()
        return now is not None and not now.serving

    async def _ask(self) -> BackendStats | None:
        """Query HAProxy; log once that it has not answered for long."""
        try:
            table = await asyncio.to_thread(ask, self._path, _COMMAND, _TIMEOUT_S)
            found = parse_stats(table.decode(), self._server)
        except (OSError, KeyError, ValueError) as error:
            if not self._warned and time.monotonic() > self._seen_s + WARN_AFTER_S:
                self._warned = True
                logger.warning("waits in HAProxy are not seen: %s: %r", self._path, error)
            return None
        self._seen_s = time.monotonic()
        return found


def parse_stats(table: str, server_ends_with: str) -> BackendStats | None:
    """Return what the answer to ``show stat`` says of a server; None if it has no such server.

    Raise a `KeyError` or a `ValueError` if the table lacks a column, or a number is none.
    """
    rows = rows_of(table)
    own = next((row for row in rows if (row["svname"] or "").endswith(server_ends_with)), None)
    if own is None:
        return None
    of_backend = [row for row in rows if row["pxname"] == own["pxname"]]
    of_all = [row for row in of_backend if row["svname"] == "BACKEND"]
    # Backup servers answer for replicas that are gone.
    replicas = [row for row in of_backend if row["svname"] != "BACKEND" and row["bck"] == "0"]
    outward_ms = sum(float(own[name] or 0) for name in ("qtime", "ctime"))
    return BackendStats(
        int(own["stot"] or 0),
        outward_ms + float(own["rtime"] or 0),
        outward_ms,
        sum((row["addr"] or "").startswith(_OF_THIS_NODE) for row in replicas),
        sum(row["status"].startswith("UP") for row in replicas),
        tuple(
            sum(int(row[name] or 0) for row in of_all) for name in ("dreq", "hrsp_2xx", "hrsp_5xx")
        ),
    )
