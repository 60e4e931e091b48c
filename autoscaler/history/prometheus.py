"""Ask a Prometheus server for the requests of the past days."""

import http.client
import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

import numpy as np

from autoscaler.history.traces import Trace
from policy.errors import InvalidInputError, SojournError

#: Resolution of the query: the SLA is judged by the minute.
STEP_S = 60
#: Prometheus answers a query with 11,000 points at most.
_MAX_POINTS = 10_000
_TIMEOUT_S = 30.0
_MAX_BYTES = 8 << 20


class UnreachableError(SojournError):
    """The server does not answer, or fails; it may do better next time."""


def query_range(url: str, query: str, begin_s: int, end_s: int) -> Trace:
    """Return the result of a range query, one value a minute.

    Parameters
    ----------
    url : str
        Of the server, with the path before ``/api/v1`` if there is one.
    query : str
        PromQL for requests per second, over the minute before each point. One series must result.
    begin_s, end_s : int
        The span in Unix time; whole minutes of it are asked for.

    Returns
    -------
    Trace
        Requests by the minute, NaN where the series has no value; from the first minute that has.

    Raises
    ------
    UnreachableError
        The server does not answer, or fails.
    InvalidInputError
        It rejects the query, or the answer is not one series of rates.
    """
    first, last = math.ceil(begin_s / STEP_S) + 1, math.floor(end_s / STEP_S)
    counts = np.full(max(0, last - first + 1), math.nan)
    for start in range(first, last + 1, _MAX_POINTS):
        stop = min(last, start + _MAX_POINTS - 1)
        for time_s, rate_per_s in _points(url, query, start * STEP_S, stop * STEP_S):
            place = round(time_s / STEP_S) - first
            if 0 <= place < counts.size and math.isfinite(rate_per_s):
                counts[place] = STEP_S * max(0.0, rate_per_s)
    known = np.flatnonzero(~np.isnan(counts))
    if not known.size:
        raise InvalidInputError(f"history: {url} has no values of {query!r} in this time")
    kept = slice(int(known[0]), int(known[-1]) + 1)
    return Trace(counts[kept], STEP_S, (first - 1 + kept.start) * STEP_S, True)


def _points(url: str, query: str, start_s: int, stop_s: int) -> list[tuple[float, float]]:
    asked = {"query": query, "start": start_s, "end": stop_s, "step": STEP_S}
    body = urllib.parse.urlencode(asked).encode()
    request = urllib.request.Request(f"{url}/api/v1/query_range", data=body)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            content = answer.read(_MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            reason = _error_in(error.read(_MAX_BYTES)) or str(error.reason)
        if error.code in (400, 401, 403, 404, 422):
            raise InvalidInputError(f"history: {url} answers {error.code}: {reason}") from error
        raise UnreachableError(f"{url} answers {error.code}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", None) or error
        raise UnreachableError(f"{url} does not answer ({cause})") from error
    try:
        if len(content) > _MAX_BYTES:
            raise ValueError("too long")
        series = json.loads(content)["data"]["result"]
        if len(series) > 1:
            raise InvalidInputError(
                f"history: the query must result in one series, not {len(series)}; sum them up: "
                f"sum({query})"
            )
        points = series[0]["values"] if series else ()
        return [(float(time_s), float(value)) for time_s, value in points]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInputError(f"history: {url} does not answer like Prometheus") from error


def _error_in(content: bytes) -> str:
    try:
        answer: Mapping[str, Any] = json.loads(content)
        return str(answer["error"]).splitlines()[0]
    except (KeyError, TypeError, ValueError, IndexError):
        return ""
