"""Offered load: what clients asked for, counted once each, whoever answered it and when.

Replicas count every try that reaches them. Completions would hide an overload (no fleet completes
more than it can), and tries alone would count a request twice that one replica refused and
another took. `offered_requests` takes the retries out; `OfferedLoad` keeps the counts over time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoscaler.reports import ReplicaReport
from policy.errors import InvalidInputError

FloatArray = NDArray[np.float64]

#: A replica this much behind the newest report is no longer waited for.
MAX_LAG_S = 3.0
#: For this long after the first report of all, replicas seen first are taken for old ones.
_SETTLE_S = 5.0
_HISTORY_S = 600.0


def offered_requests(attempts: ArrayLike, refusals: ArrayLike, retries: int) -> FloatArray:
    """Count the requests behind a number of tries.

    With random routing, each try is refused with the same probability p = refusals / attempts,
    and the balancer gives up after k retries, so a request makes 1 + p + … + p^k =
    (1 - p^(k+1)) / (1 - p) tries on average. The requests are the attempts divided by that.

    Parameters
    ----------
    attempts, refusals : array_like of float
        Tries that reached replicas, and those of them that were refused. Same shape.
    retries : int
        k.

    Returns
    -------
    ndarray of float, same shape
    """
    tried = np.asarray(attempts, dtype=np.float64)
    refused = np.minimum(np.asarray(refusals, dtype=np.float64), tried)
    p = np.divide(refused, tried, out=np.zeros_like(tried), where=tried > 0)
    certain = p > 1 - 1e-9
    p_below_1 = np.where(certain, 0.0, p)
    return tried * np.where(
        certain, 1 / (retries + 1), (1 - p_below_1) / (1 - p_below_1 ** (retries + 1))
    )


@dataclass(frozen=True, eq=False)
class RateHistory:
    """What has arrived of late.

    Attributes
    ----------
    current_per_s : float
        Mean rate over the rate window, which ends at `end_s`.
    end_s : float
        The latest whole second of which every live replica has told.
    rates_per_s : ndarray of float, shape (seconds,)
        Mean rate of each second, oldest first; the last ends at `end_s`.
    """

    current_per_s: float
    end_s: float
    rates_per_s: FloatArray


class OfferedLoad:
    """The tries and refusals of all replicas over the last ten minutes, from their counters.

    What a counter rose by between two reports of its replica is spread evenly over the time
    between them. So a report that comes late, twice, or out of order changes nothing; a counter
    that falls has started anew from 0; and what a vanished replica has counted stays counted.
    """

    def __init__(self) -> None:
        self._steps = int(_HISTORY_S)
        # Rings of seconds: second s (the time s to s + 1) is at s modulo their length.
        self._attempts = np.zeros(self._steps)
        self._refusals = np.zeros(self._steps)
        self._head = 0
        self._counters: dict[str, tuple[float, float, float]] = {}
        self._first_s = math.nan
        self._newest_s = -math.inf
        self._last_request_s = -math.inf

    @property
    def newest_s(self) -> float:
        """Time of the newest report; minus infinity if there was none."""
        return self._newest_s

    @property
    def first_s(self) -> float:
        """Time of the first report of all; minus infinity if there was none."""
        return -math.inf if math.isnan(self._first_s) else self._first_s

    @property
    def last_request_s(self) -> float:
        """Time of the latest report that told of a request; minus infinity if none has."""
        return self._last_request_s

    def observe(self, report: ReplicaReport) -> bool:
        """Take a report in; False if it is no news of its replica."""
        time_s = report.time_s
        known = self._counters.get(report.replica_id)
        if known is not None and time_s <= known[0]:
            return False
        newest_s = self._newest_s
        if math.isnan(self._first_s):
            self._first_s = time_s
        self._counters[report.replica_id] = (time_s, report.offered_total, report.refused_total)
        self._newest_s = max(newest_s, time_s)
        self._advance(math.floor(time_s))
        if known is None:
            # A replica that came while we watched has counted from 0 since the last we saw.
            if time_s - self._first_s > _SETTLE_S:
                since_s = min(newest_s, time_s - 1.0)
                self._spread(since_s, time_s, report.offered_total, report.refused_total)
            return True
        since_s, offered, refused = known
        if report.offered_total < offered or report.refused_total < refused:
            offered = refused = 0.0
        self._spread(
            since_s, time_s, report.offered_total - offered, report.refused_total - refused
        )
        return True

    def forget_before(self, cutoff_s: float) -> None:
        """Forget the counters of replicas not heard of since `cutoff_s`, not what they counted."""
        for name in [name for name, seen in self._counters.items() if seen[0] < cutoff_s]:
            del self._counters[name]

    def history(self, now_s: float, window_s: float, retries: int) -> RateHistory | None:
        """Give the rates up to the latest time of which every live replica has told.

        Parameters
        ----------
        now_s : float
            Reports of a later time, from clocks that are ahead, are of now.
        window_s : float
            Length of the rate window.
        retries : int
            Retries after which the balancer gives up.

        Returns
        -------
        RateHistory or None
            None while less than half of the window has been seen.
        """
        newest_s = min(self._newest_s, now_s)
        if not math.isfinite(newest_s):
            return None
        cutoff_s = newest_s - MAX_LAG_S
        told_s = min(
            (seen[0] for seen in self._counters.values() if seen[0] >= cutoff_s), default=newest_s
        )
        end = math.floor(min(told_s, newest_s))
        begin = max(math.ceil(self._first_s), self._head - self._steps + 1)
        window = round(window_s)
        if end - begin < max(2, window // 2):
            return None
        attempts, refusals = self._between(begin, end)
        offered = float(
            offered_requests(attempts[-window:].sum(), refusals[-window:].sum(), retries)
        )
        return RateHistory(
            current_per_s=offered / min(window, end - begin),
            end_s=float(end),
            rates_per_s=offered_requests(attempts, refusals, retries),
        )

    def state_dict(self) -> dict[str, Any]:
        """Give all that is known, as plain numbers, lists and tables."""
        begin = self._head - self._steps + 1
        attempts, refusals = self._between(begin, self._head + 1)
        return {
            "head": self._head,
            "attempts": attempts.tolist(),
            "refusals": refusals.tolist(),
            "counters": {name: list(seen) for name, seen in self._counters.items()},
            "first_s": None if math.isnan(self._first_s) else self._first_s,
            "newest_s": None if math.isinf(self._newest_s) else self._newest_s,
            "last_request_s": (None if math.isinf(self._last_request_s) else self._last_request_s),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "OfferedLoad":
        """Make one that knows what `state_dict` gave.

        Raises
        ------
        InvalidInputError
            The state is not of this form.
        """
        load = cls()
        try:
            load._head = int(state["head"])
            indices = np.arange(load._head - load._steps + 1, load._head + 1) % load._steps
            for ring, name in ((load._attempts, "attempts"), (load._refusals, "refusals")):
                counts = np.asarray(state[name], dtype=np.float64)
                if counts.shape != ring.shape:
                    raise ValueError(f"{name}: {counts.size} steps, not {ring.size}")
                ring[indices] = counts
            load._counters = {
                str(name): (float(time_s), float(offered), float(refused))
                for name, (time_s, offered, refused) in state["counters"].items()
            }
            load._first_s = math.nan if state["first_s"] is None else float(state["first_s"])
            load._newest_s = _or_never(state["newest_s"])
            load._last_request_s = _or_never(state["last_request_s"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(f"state of the offered load: not usable ({error!r})") from error
        return load

    def _between(self, begin: int, end: int) -> tuple[FloatArray, FloatArray]:
        indices = np.arange(begin, end) % self._steps
        return self._attempts[indices], self._refusals[indices]

    def _advance(self, head: int) -> None:
        if head <= self._head:
            return
        new = np.arange(max(self._head + 1, head - self._steps + 1), head + 1) % self._steps
        self._attempts[new] = 0.0
        self._refusals[new] = 0.0
        self._head = head

    def _spread(self, since_s: float, until_s: float, attempts: float, refusals: float) -> None:
        """Add counts, evenly over a time; what lies before the history is dropped."""
        if not attempts and not refusals:
            return
        self._last_request_s = max(self._last_request_s, until_s)
        last = math.floor(until_s)
        first = max(math.floor(since_s), self._head - self._steps + 1)
        share_per_s = 1 / (until_s - since_s)
        for second in range(first, last + 1):
            share = share_per_s * (min(until_s, second + 1) - max(since_s, second))
            if share:
                index = second % self._steps
                self._attempts[index] += share * attempts
                if refusals:
                    self._refusals[index] += share * refusals


def _or_never(time_s: float | None) -> float:
    return -math.inf if time_s is None else float(time_s)
