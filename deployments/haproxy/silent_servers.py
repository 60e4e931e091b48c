"""Replicas that do not answer any more: when to take their requests away from them.

HAProxy's health checks find such a replica, and new requests go elsewhere. What it holds already
would wait until it answers. ``shutdown sessions server`` has HAProxy try those requests elsewhere.
A replica that refuses connections or fails its check may still be finishing its last requests: they
stay with it.

HAProxy can do that by itself (``on-marked-down shutdown-sessions``), but then it also closes
connections of clients whose request is just about to be tried again after a failed connection, as
after the death of a replica.
"""

import csv
import io
from dataclasses import dataclass, field

#: Where not even connections are answered, requests wait for one, or for the next try, twice
#: `deployments.haproxy.ray_config.CONNECT_TIMEOUT_MS` at most. Then what is left is held.
SETTLE_S = 1.0


class StatisticsError(ValueError):
    """HAProxy's statistics are not understood."""


@dataclass(frozen=True)
class Server:
    """What HAProxy tells of one server.

    Attributes
    ----------
    name : str
        ``backend/server``.
    up : bool
    check : str
        HAProxy's code for the last health check: ``L7TOUT`` if it was not answered, ``L4TOUT`` if
        not even its connection was.
    sessions : int
        Requests that it holds.
    """

    name: str
    up: bool
    check: str
    sessions: int


def parse_servers(table: str) -> list[Server]:
    """Read the answer to ``show stat``.

    Raises
    ------
    StatisticsError
        The table lacks a column, or a number is none.
    """
    try:
        return [
            Server(
                f"{row['pxname']}/{row['svname']}",
                row["status"].startswith("UP"),
                row["check_status"].removeprefix("* "),
                int(row["scur"] or 0),
            )
            for row in csv.DictReader(io.StringIO(table.removeprefix("# ").strip()))
            if row["svname"] not in ("FRONTEND", "BACKEND")
        ]
    except (KeyError, ValueError, AttributeError) as error:
        raise StatisticsError(f"HAProxy's statistics are not understood ({error!r})") from error


@dataclass
class SilentServers:
    """Follows the servers, and says whose requests are to be sent on."""

    _since_s: dict[str, float] = field(default_factory=dict)

    def look(self, servers: list[Server], now_s: float) -> list[str]:
        """Return the names of the servers whose requests are to be taken away now.

        Parameters
        ----------
        servers : list of Server
        now_s : float
            On a clock that never steps.
        """
        silent = [server for server in servers if not server.up and "TOUT" in server.check]
        self._since_s = {server.name: self._since_s.get(server.name, now_s) for server in silent}
        return [
            server.name
            for server in silent
            if server.sessions
            and (server.check == "L7TOUT" or now_s >= self._since_s[server.name] + SETTLE_S)
        ]
