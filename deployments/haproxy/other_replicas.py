"""The share of requests that the other replicas of a service refuse, by HAProxy's count.

HAProxy tries a refused request at another replica. Where those refuse most of what they are asked,
too, that only makes each request one for several fronts (`deployments.http.retry_budget`).
"""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass

#: Time after which what was seen counts for 1/e.
MEMORY_S = 1.0
#: What was seen says nothing any more if HAProxy has been silent for so long.
FORGET_AFTER_S = 3.0
#: Fewer requests than this in that time say nothing.
MIN_TRIES = 20.0


@dataclass(frozen=True)
class Tries:
    """What HAProxy counts of one server since it started.

    Attributes
    ----------
    sent : int
        Requests sent to it, tries again included.
    refused : int
        Those that were tried elsewhere.
    errors : int
        Those answered with an error of the server: refused finally, or failed.
    """

    sent: int
    refused: int
    errors: int


def tries_elsewhere(table: str, server_ends_with: str) -> dict[str, Tries]:
    """Return the tries of the other servers in a server's backend, by their names.

    Parameters
    ----------
    table : str
        The answer to ``show stat``: CSV, its header line beginning with ``#``.
    server_ends_with : str
        How the server's name ends.

    Raises
    ------
    KeyError, ValueError
        The table lacks a column, or a number is none.
    """
    rows = list(csv.DictReader(table.removeprefix("# ").splitlines()))
    backends = {row["pxname"] for row in rows if (row["svname"] or "").endswith(server_ends_with)}
    return dict(_tries(rows, backends, server_ends_with))


def _tries(
    rows: list[dict[str, str]], backends: set[str], server_ends_with: str
) -> Iterator[tuple[str, Tries]]:
    for row in rows:
        name = row["svname"] or ""
        # Backup servers answer for replicas that are gone.
        if row["pxname"] in backends and not name.endswith(server_ends_with) and row["bck"] == "0":
            sent, again, errors = (int(row[one] or 0) for one in ("stot", "wretr", "hrsp_5xx"))
            yield name, Tries(sent, again, errors)


class RefusedElsewhere:
    """Turn what HAProxy counts at each look into the share refused in the last second.

    Parameters
    ----------
    server_ends_with : str
        How HAProxy's name of this replica ends.

    Attributes
    ----------
    refusals_of_errors : float
        The share of refusals among the answers with an error of the server, 0 to 1. HAProxy does
        not tell them apart, so it is taken from this replica's own answers.
    """

    def __init__(self, server_ends_with: str) -> None:
        self._server = server_ends_with
        self._before: dict[str, Tries] = {}
        self._looked_s = -math.inf
        self.refusals_of_errors = 1.0
        self._sent = self._refused = self._errors = 0.0

    def share(self, now_s: float) -> float:
        """Return the share refused, 0 to 1; 0 if too little was tried, or seen lately, to tell."""
        if self._sent < MIN_TRIES or now_s > self._looked_s + FORGET_AFTER_S:
            return 0.0
        refused = self._refused + self.refusals_of_errors * self._errors
        return min(1.0, refused / self._sent)

    def observe(self, table: str, now_s: float) -> None:
        """Take in the answer to ``show stat``; errors are those of `tries_elsewhere`."""
        before, self._before = self._before, tries_elsewhere(table, self._server)
        keep = math.exp(-(now_s - self._looked_s) / MEMORY_S)
        self._sent, self._refused, self._looked_s = keep * self._sent, keep * self._refused, now_s
        self._errors *= keep
        for name, now in self._before.items():
            earlier = before.get(name)
            if earlier is not None and now.sent >= earlier.sent:
                self._sent += now.sent - earlier.sent
                self._refused += max(0, now.refused - earlier.refused)
                self._errors += max(0, now.errors - earlier.errors)
