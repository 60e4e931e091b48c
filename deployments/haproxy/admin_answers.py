"""What HAProxy's admin socket answers: the running means of one server's times.

HAProxy's mean of the total time is of no use: on a connection that is kept alive that begins with
the end of the answer before, so it counts the time in which the client had nothing to ask.
"""

import csv
import math
from dataclasses import dataclass

from policy.errors import SojournError

#: HAProxy's running means are plain ones up to so many requests; from there on, a request weighs
#: 1/e after as many others. Its manual says 1024.
MEAN_OVER_REQUESTS = 512
#: Fewer new requests than this hardly move HAProxy's means, so they say nothing.
MIN_REQUESTS = 100


class HaproxyAnswerError(SojournError):
    """HAProxy's admin socket cannot be asked, or its answer is not understood."""


@dataclass(frozen=True)
class MeanTimes:
    """Mean times of the requests that a server answers, as HAProxy measures them.

    Attributes
    ----------
    total_ms : float
        From when a request is complete until its answer begins.
    earlier_tries_ms : float
        The part of it that is lost in earlier tries, which were refused.
    """

    total_ms: float
    earlier_tries_ms: float


@dataclass(frozen=True)
class ServerTimes:
    """The requests to one server, and their mean times.

    Attributes
    ----------
    requests : int
        Requests sent to it since HAProxy started, tries again included.
    means : MeanTimes
        Running means.
    """

    requests: int
    means: MeanTimes


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
    HaproxyAnswerError
        The table lacks a column, or a number is none.
    """
    try:
        for row in csv.DictReader(table.removeprefix("# ").splitlines()):
            if (row["svname"] or "").endswith(server_ends_with):
                queue_ms, connect_ms, response_ms = (
                    float(row[name] or 0) for name in ("qtime", "ctime", "rtime")
                )
                means = MeanTimes(queue_ms + connect_ms + response_ms, queue_ms)
                return ServerTimes(int(row["stot"] or 0), means)
    except (KeyError, ValueError) as error:
        raise HaproxyAnswerError(f"HAProxy's statistics: not understood ({error!r})") from error
    return None


def means_since(before: ServerTimes, now: ServerTimes) -> MeanTimes | None:
    """Return the mean times of the requests between two looks; None if there were too few.

    The i-th request takes HAProxy's mean 1/min(i, n) of the way to its own time, where n is
    `MEAN_OVER_REQUESTS`. So of the mean before, a known share is kept; this solves for the rest.
    HAProxy's whole numbers of ms are magnified: a result may be too high, and the next one as much
    too low, below 0, too. On average they are right, as HAProxy rounds up what it tells and what it
    forgets alike (`swrate_avg` and `swrate_add` in its ``freq_ctr.h``).
    """
    requests = now.requests - before.requests
    if requests < MIN_REQUESTS:
        return None
    most = MEAN_OVER_REQUESTS
    kept = min(before.requests, most) / min(now.requests, most)
    kept *= math.exp((max(before.requests, most) - max(now.requests, most)) / most)

    def new(mean_before: float, mean_now: float) -> float:
        return (mean_now - kept * mean_before) / (1 - kept)

    return MeanTimes(
        new(before.means.total_ms, now.means.total_ms),
        new(before.means.earlier_tries_ms, now.means.earlier_tries_ms),
    )
