"""The requests that HAProxy refused at its concurrency limit, by its own count.

They reach no replica, but they are load. Each HAProxy counts them by backend, and the replicas of
its node divide them.
"""

import csv

_LOCAL = ("unix", "127.0.0.1:")


class DeniedRequests:
    """One replica's part of the requests that the HAProxy of its node refused.

    Parameters
    ----------
    server_ends_with : str
        How HAProxy's name of the replica ends.
    """

    def __init__(self, server_ends_with: str) -> None:
        self._server = server_ends_with
        self._before: int | None = None
        self._denied = 0.0

    def observe(self, table: str) -> None:
        """Read the answer to ``show stat`` with backends and servers.

        Raises
        ------
        KeyError, ValueError
            The table lacks a column, or a number is none.
        """
        rows = list(csv.DictReader(table.removeprefix("# ").splitlines()))
        backend = next(
            (row["pxname"] for row in rows if (row["svname"] or "").endswith(self._server)), None
        )
        if backend is None:
            return
        of_backend = [row for row in rows if row["pxname"] == backend]
        now = sum(int(row["dreq"] or 0) for row in of_backend if row["svname"] == "BACKEND")
        # Backup servers answer for replicas that are gone.
        replicas = sum(
            row["bck"] == "0" and (row["addr"] or "").startswith(_LOCAL)
            for row in of_backend
            if row["svname"] != "BACKEND"
        )
        before, self._before = self._before, now
        if before is not None and now > before:
            self._denied += (now - before) / max(1, replicas)

    def take(self) -> int:
        """Return how many requests there were since the last call, fractions carried over."""
        denied = int(self._denied)
        self._denied -= denied
        return denied
