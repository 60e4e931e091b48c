"""HAProxy's view of a replica: how long it waits for connections to it and for its answers.

A replica cannot see what waits in HAProxy, or between HAProxy and itself. HAProxy measures both, as
running means over its last 1,024 requests per server; its admin socket tells them.
"""

import asyncio
import csv
import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path

from policy.errors import SojournError

logger = logging.getLogger("sojourn.http")

#: The requests over which HAProxy averages (its constant TIME_STATS_SAMPLES).
MEAN_OVER_REQUESTS = 1024
#: Fewer new requests than this hardly move HAProxy's means, so they say nothing.
MIN_REQUESTS = 100
#: Where Ray puts the socket, unless the environment says otherwise.
_SOCKET_VARIABLE, _DEFAULT_SOCKET = "RAY_SERVE_HAPROXY_SOCKET_PATH", "/tmp/haproxy-serve/admin.sock"
_TIMEOUT_S = 0.5


class HaproxyViewError(SojournError):
    """HAProxy's admin socket cannot be read, or its answer is not understood."""


@dataclass(frozen=True)
class ServerTimes:
    """What HAProxy counts of one server.

    Attributes
    ----------
    requests : int
        Requests sent to it since HAProxy started.
    connect_ms, response_ms : float
        Running means of the time until it was connected, and then until it began to answer.
    """

    requests: int
    connect_ms: float
    response_ms: float

    @property
    def mean_ms(self) -> float:
        """Running mean of the time from HAProxy's choice of the server to its answer."""
        return self.connect_ms + self.response_ms


def parse_server_times(table: str, server_ends_with: str) -> ServerTimes | None:
    """Return the times of a server from the answer to ``show stat``.

    Parameters
    ----------
    table : str
        CSV, its header line beginning with ``#``.
    server_ends_with : str
        How the server's name ends.

    Returns
    -------
    ServerTimes or None
        None if the table has no such server.

    Raises
    ------
    HaproxyViewError
        The table lacks a column, or a number is none.
    """
    try:
        for row in csv.DictReader(table.removeprefix("# ").splitlines()):
            if row["svname"].endswith(server_ends_with):
                requests, connect, response = row["stot"], row["ctime"], row["rtime"]
                return ServerTimes(int(requests or 0), float(connect or 0), float(response or 0))
    except (KeyError, ValueError) as error:
        raise HaproxyViewError(f"HAProxy's statistics: not understood ({error!r})") from error
    return None


def mean_since_ms(before: ServerTimes, now: ServerTimes) -> float | None:
    """Return the mean time of the requests between two looks; None if there were too few.

    HAProxy's mean m after k requests with mean x is ``m exp(-k/n) + x (1 - exp(-k/n))``, where n is
    `MEAN_OVER_REQUESTS`; this solves for x.
    """
    requests = now.requests - before.requests
    if requests < MIN_REQUESTS:
        return None
    kept = math.exp(-requests / MEAN_OVER_REQUESTS)
    return max(0.0, (now.mean_ms - kept * before.mean_ms) / (1 - kept))


def socket_path_on(node_id: str) -> Path:
    """Return the path of HAProxy's admin socket on a node: Ray puts it into a folder of its own."""
    path = Path(os.environ.get(_SOCKET_VARIABLE, _DEFAULT_SOCKET))
    return path.parent / node_id / path.name


class HaproxyView:
    """Follow the time that HAProxy's requests to one replica take.

    Parameters
    ----------
    server_ends_with : str
        How HAProxy's name of the server ends: Ray ends it with the replica's unique id.
    socket_path : Path
        HAProxy's admin socket.
    """

    def __init__(self, server_ends_with: str, socket_path: Path) -> None:
        self._server = server_ends_with
        self._path = socket_path
        self._before: ServerTimes | None = None
        self._warned = False

    async def look(self) -> float | None:
        """Return the mean time in ms of the requests since the last look.

        None if there were too few, at the first look, or if HAProxy cannot be asked; the first
        failure is logged.
        """
        try:
            now = parse_server_times(await self._show_stat(), self._server)
        except HaproxyViewError as error:
            if not self._warned:
                self._warned = True
                logger.warning("waits in HAProxy are not seen: %s", error)
            now = None
        before, self._before = self._before, now
        if before is None or now is None or now.requests < before.requests:
            return None
        mean_ms = mean_since_ms(before, now)
        if mean_ms is None:
            self._before = before
        return mean_ms

    async def _show_stat(self) -> str:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self._path)
                try:
                    writer.write(b"show stat\n")
                    return (await reader.read()).decode()
                finally:
                    writer.close()
        except (OSError, TimeoutError, UnicodeDecodeError) as error:
            raise HaproxyViewError(f"{self._path}: {error!r}") from error
