"""Query a Prometheus server for the requests of the past days, with one range query."""

import http.client
import json
import math
import urllib.error
import urllib.parse
import urllib.request

import numpy as np

from autoscaler.history.traces import Trace
from policy.errors import InvalidInputError, SojournError

#: Resolution of the query: the SLA is judged by the minute. Prometheus answers with 11,000 points,
#: a week, at most.
STEP_S = 60
_TIMEOUT_S = 30.0
_MAX_BYTES = 8 << 20


class UnreachableError(SojournError):
    """The server does not answer, or fails; it may do better next time."""


def query_range(url: str, query: str, begin_s: int, end_s: int) -> Trace:
    """Return the result of a range query: requests by the minute, NaN where there is no value.

    The server's URL has the path before ``/api/v1``, if there is one. PromQL gives requests per
    second, over the minute before each point; one series must result. The span, in Unix time, is a
    week at most; whole minutes of it are asked for. `UnreachableError`: the server does not answer,
    or fails. `InvalidInputError`: it rejects the query, or the answer is not one series of rates.
    """
    first, last = math.ceil(begin_s / STEP_S) + 1, math.floor(end_s / STEP_S)
    counts = np.full(max(0, last - first + 1), math.nan)
    content = _answer(url, query, first * STEP_S, last * STEP_S)
    try:
        series = json.loads(content)["data"]["result"]
        if len(series) > 1:
            raise InvalidInputError(
                f"history: the query must result in one series, not {len(series)}; sum them up: "
                f"sum({query})"
            )
        for time_s, value in series[0]["values"] if series else ():
            place, rate_per_s = round(float(time_s) / STEP_S) - first, float(value)
            if 0 <= place < counts.size and math.isfinite(rate_per_s):
                counts[place] = STEP_S * max(0.0, rate_per_s)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInputError(f"history: {url} does not answer like Prometheus") from error
    known = np.flatnonzero(~np.isnan(counts))
    if not known.size:
        raise InvalidInputError(f"history: {url} has no values of {query!r} in this time")
    kept = slice(int(known[0]), int(known[-1]) + 1)
    return Trace(counts[kept], STEP_S, (first - 1 + kept.start) * STEP_S, True)


def _answer(url: str, query: str, start_s: int, stop_s: int) -> bytes:
    asked = {"query": query, "start": start_s, "end": stop_s, "step": STEP_S}
    request = urllib.request.Request(
        f"{url.rstrip('/')}/api/v1/query_range", data=urllib.parse.urlencode(asked).encode()
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            content: bytes = answer.read(_MAX_BYTES)
            return content
    except urllib.error.HTTPError as error:
        with error:
            reason = error.read(_MAX_BYTES).decode(errors="replace").strip() or str(error.reason)
        if error.code in (400, 401, 403, 404, 422):
            one_line = " ".join(reason.split())[:200]
            raise InvalidInputError(f"history: {url} answers {error.code}: {one_line}") from error
        raise UnreachableError(f"{url} answers {error.code}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", None) or error
        raise UnreachableError(f"{url} does not answer ({cause})") from error
