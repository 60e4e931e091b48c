"""Leave out replicas that fail HAProxy's checks, and send their requests to others.

A replica that does not answer may have stopped, or its machine may be short of CPUs. HAProxy judges
each replica alone; on a busy machine it would leave out all of them. So its own limit is far away
(`deployments.haproxy.routing`), and this module compares: a replica that leaves two checks in a row
unanswered is left out if another replica of the application answers. It returns after two good
checks.

Its requests would wait until it goes on. ``shutdown sessions server`` has HAProxy try them
elsewhere. A replica that refuses connections or answers its checks with an error may be
finishing its last requests: it is left out, but they stay with it. ``on-marked-down
shutdown-sessions`` of HAProxy makes no such difference, and also closes connections of clients
whose request is just about to be tried again.
"""

import csv
from typing import NamedTuple

#: The failed checks in a row after which a replica is left out.
MAX_FAILURES = 2
#: Where not even connections are answered, requests wait for one, or for the next try, twice
#: `deployments.haproxy.ray_config.CONNECT_TIMEOUT_MS` at most. Then what is left is held.
SETTLE_S = 1.0
#: HAProxy's codes of checks: failed, unanswered.
_FAILED = ("L4TOUT", "L4CON", "L7TOUT", "L7RSP", "L7STS")
_SILENT = ("L7TOUT", "L4TOUT")


class Server(NamedTuple):
    """One server, as HAProxy reports it.

    `check` is HAProxy's code for the last health check: ``L7TOUT`` if it was not answered,
    ``L4TOUT`` if not even its connection was. `failures` counts failed checks in a row, and
    `sessions` the requests that it holds.
    """

    backend: str
    name: str
    backup: bool
    up: bool
    check: str
    failures: int
    sessions: int

    @property
    def silent(self) -> bool:
        return self.check in _SILENT

    @property
    def path(self) -> str:
        """Its name in HAProxy's commands."""
        return f"{self.backend}/{self.name}"


def rows_of(table: str) -> list[dict[str, str]]:
    """Return the answer to ``show stat``, by column."""
    return list(csv.DictReader(table.removeprefix("# ").splitlines()))


def parse_servers(table: str) -> list[Server]:
    """Read the answer to ``show stat``; any error if it is not what HAProxy 2.8 writes."""
    servers = []
    for row in rows_of(table):
        if row["svname"] not in ("FRONTEND", "BACKEND"):
            up = row["status"].startswith("UP")
            health, rise, fall = (int(row[f"check_{x}"] or 0) for x in ("health", "rise", "fall"))
            one = Server(
                backend=row["pxname"],
                name=row["svname"],
                backup=row["bck"] == "1",
                up=up,
                check=row["check_status"].removeprefix("* "),
                failures=max(0, rise + fall - 1 - health) if up else 0,
                sessions=int(row["scur"] or 0),
            )
            servers.append(one)
    return servers


class ServerChecks:
    """Follow the servers, and decide which commands HAProxy gets."""

    def __init__(self) -> None:
        self._silent_since_s: dict[str, float] = {}

    def look(self, servers: list[Server], now_s: float) -> list[str]:
        """Return HAProxy's commands, if any; `now_s` is of a clock that never steps."""
        answering = {
            one.backend for one in servers if one.up and not one.backup and not one.failures
        }
        commands = [
            f"set server {one.path} health down"
            for one in servers
            if one.up
            and one.check in _FAILED
            and one.failures >= MAX_FAILURES
            and (not one.silent or one.backend in answering)
        ]
        down = [one for one in servers if one.silent and not one.up]
        self._silent_since_s = {one.path: self._silent_since_s.get(one.path, now_s) for one in down}
        commands += [
            f"shutdown sessions server {one.path}"
            for one in down
            if one.sessions
            and (one.check == "L7TOUT" or now_s >= self._silent_since_s[one.path] + SETTLE_S)
        ]
        return commands
