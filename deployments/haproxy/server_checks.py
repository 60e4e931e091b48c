"""Leave out replicas that fail HAProxy's checks, and send their requests to others.

A replica that does not answer may have stopped, or its machine may be short of CPUs. HAProxy judges
each replica alone; on a busy machine it would leave out all of them. So its own limit is far away
(`deployments.haproxy.ray_config.FALL`), and this module compares: a replica that leaves two checks
in a row unanswered is left out if another replica of the application answers. It returns after two
good checks.

What it holds would wait until it goes on. ``shutdown sessions server`` has HAProxy try those
requests elsewhere. A replica that refuses connections or answers its checks with an error may be
finishing its last requests: it is left out, but they stay with it. ``on-marked-down
shutdown-sessions`` of HAProxy makes no such difference, and also closes connections of clients
whose request is just about to be tried again.
"""

import csv
import io
from dataclasses import dataclass, field

#: The failed checks in a row after which a replica is left out.
MAX_FAILURES = 2
#: Where not even connections are answered, requests wait for one, or for the next try, twice
#: `deployments.haproxy.ray_config.CONNECT_TIMEOUT_MS` at most. Then what is left is held.
SETTLE_S = 1.0


#: HAProxy's codes before the first check, and of failed ones.
_UNCHECKED = frozenset({"INI", "UNK"})
_FAILED = frozenset({"L4TOUT", "L4CON", "L7TOUT", "L7RSP", "L7STS"})


class StatisticsError(ValueError):
    """HAProxy's statistics are not understood."""


@dataclass(frozen=True)
class Server:
    """One server, as HAProxy reports it.

    Attributes
    ----------
    check : str
        HAProxy's code for the last health check: ``L7TOUT`` if it was not answered, ``L4TOUT`` if
        not even its connection was.
    failures : int
        Failed checks in a row.
    sessions : int
        Requests that it holds.
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
        """Whether the last check was not answered."""
        return self.check in ("L7TOUT", "L4TOUT")

    @property
    def path(self) -> str:
        """Its name in HAProxy's commands."""
        return f"{self.backend}/{self.name}"


def parse_servers(table: str) -> list[Server]:
    """Read the answer to ``show stat``.

    Raises
    ------
    StatisticsError
        The table lacks a column, or a number is none.
    """
    rows = csv.DictReader(io.StringIO(table.removeprefix("# ").strip()))
    try:
        return [_server(row) for row in rows if row["svname"] not in ("FRONTEND", "BACKEND")]
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        raise StatisticsError(f"HAProxy's statistics are not understood ({error!r})") from error


def _server(row: dict[str, str]) -> Server:
    up = row["status"].startswith("UP")
    health, rise, fall = (int(row[f"check_{name}"] or 0) for name in ("health", "rise", "fall"))
    return Server(
        backend=row["pxname"],
        name=row["svname"],
        backup=row["bck"] == "1",
        up=up,
        check=row["check_status"].removeprefix("* "),
        failures=max(0, rise + fall - 1 - health) if up else 0,
        sessions=int(row["scur"] or 0),
    )


@dataclass
class ServerChecks:
    """Follow the servers, and decide which commands HAProxy gets."""

    _silent_since_s: dict[str, float] = field(default_factory=dict)

    def look(self, servers: list[Server], now_s: float) -> list[str]:
        """Return HAProxy's commands, if any.

        Parameters
        ----------
        now_s : float
            On a clock that never steps.
        """
        # HAProxy would leave out a server that it does not know yet after one failed check.
        commands = [
            f"set server {one.path} health up"
            for one in servers
            if one.up and one.failures and one.check in _UNCHECKED
        ]
        answering = {one.backend for one in servers if _answers(one)}
        commands += [
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


def _answers(server: Server) -> bool:
    return server.up and not server.backup and not server.failures
