"""The offered load: the requests that clients sent, each counted once, whether answered or not.

Replicas count every try that reaches them. Completions would hide an overload, because no fleet
completes more than it can. Tries would count a request twice that one replica refused and another
accepted. `offered_requests` removes the retries, and `OfferedLoad` keeps the counts over time.
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

#: The rates do not wait for a replica that is further behind the newest report than this.
MAX_LAG_S = 3.0
#: Replicas first seen this soon after the very first report are assumed to have served before.
_SETTLE_S = 5.0
_HISTORY_S = 600.0


def offered_requests(attempts: ArrayLike, refusals: ArrayLike, retries: int) -> FloatArray:
    """Estimate the number of requests behind a number of tries.

    With random routing, every try is refused with the same probability p = refusals / attempts, and
    the balancer gives up after k retries. So a request makes 1 + p + … + p^k =
    (1 - p^(k+1)) / (1 - p) tries on average, by which the attempts are divided.

    Parameters
    ----------
    attempts, refusals : array_like of float
        Tries that reached replicas, and how many of them were refused. Same shape.
    retries : int
        k, the retries after which the balancer gives up.

    Returns
    -------
    ndarray of float, shape of `attempts`
        Requests.
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
    """The recent offered load.

    Attributes
    ----------
    current_per_s : float
        Mean rate over the rate window, which ends at `end_s`, in requests per second.
    end_s : float
        The latest whole second that the reports of every live replica cover.
    rates_per_s : ndarray of float, shape (seconds,)
        Rate of each second, oldest first; the last one ends at `end_s`.
    """

    current_per_s: float
    end_s: float
    rates_per_s: FloatArray


class OfferedLoad:
    """Tries and refusals of all replicas over the last ten minutes, from their counters.

    The increase of a counter between two reports of its replica is spread evenly over the time
    between them. So a report that comes late, twice or out of order changes nothing. A counter that
    falls has restarted at 0. The counts of a replica that is gone remain.
    """

    def __init__(self) -> None:
        self._seconds = int(_HISTORY_S)
        # Ring buffers by the second: second s, the time from s to s + 1, is at s modulo the length.
        self._attempts = np.zeros(self._seconds)
        self._refusals = np.zeros(self._seconds)
        self._head = 0
        # By replica: time of its newest report, tries, refusals.
        self._counters: dict[str, tuple[float, float, float]] = {}
        self._first_s = math.nan
        self._newest_s = -math.inf
        self._last_request_s = -math.inf

    @property
    def newest_s(self) -> float:
        """The time of the newest report; minus infinity before the first."""
        return self._newest_s

    @property
    def first_s(self) -> float:
        """The time of the very first report; minus infinity before it."""
        return -math.inf if math.isnan(self._first_s) else self._first_s

    @property
    def last_request_s(self) -> float:
        """The time of the latest report with a new request; minus infinity if there was none."""
        return self._last_request_s

    def observe(self, report: ReplicaReport) -> bool:
        """Add a report; return whether it is newer than the last one of its replica."""
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
            # A replica that appears later has counted from 0 since the newest report before.
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
        """Forget replicas that have not reported since `cutoff_s`, but keep their counts."""
        for name in [name for name, seen in self._counters.items() if seen[0] < cutoff_s]:
            del self._counters[name]

    def history(self, now_s: float, window_s: float, retries: int) -> RateHistory | None:
        """Return the rates up to the latest second that every live replica has reported.

        Parameters
        ----------
        now_s : float
            Reports with a later time, from clocks that are ahead, count as of now.
        window_s : float
            Length of the rate window, in s.
        retries : int
            Retries after which the balancer gives up.

        Returns
        -------
        RateHistory or None
            None until half of the window has been observed.
        """
        newest_s = min(self._newest_s, now_s)
        if not math.isfinite(newest_s):
            return None
        cutoff_s = newest_s - MAX_LAG_S
        reported_s = min(
            (seen[0] for seen in self._counters.values() if seen[0] >= cutoff_s), default=newest_s
        )
        end = math.floor(min(reported_s, newest_s))
        begin = max(math.ceil(self._first_s), self._head - self._seconds + 1)
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
        """Return the state as plain numbers, lists and dicts."""
        begin = self._head - self._seconds + 1
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
        """Make one from what `state_dict` returned.

        Raises
        ------
        InvalidInputError
            The state does not have this form.
        """
        load = cls()
        try:
            load._head = int(state["head"])
            indices = np.arange(load._head - load._seconds + 1, load._head + 1) % load._seconds
            for ring, name in ((load._attempts, "attempts"), (load._refusals, "refusals")):
                counts = np.asarray(state[name], dtype=np.float64)
                if counts.shape != ring.shape:
                    raise ValueError(f"{name}: {counts.size} seconds, not {ring.size}")
                ring[indices] = counts
            load._counters = {
                str(name): (float(time_s), float(offered), float(refused))
                for name, (time_s, offered, refused) in state["counters"].items()
            }
            load._first_s = math.nan if state["first_s"] is None else float(state["first_s"])
            load._newest_s = _or_never(state["newest_s"])
            load._last_request_s = _or_never(state["last_request_s"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(f"offered load state: not usable ({error!r})") from error
        return load

    def _between(self, begin: int, end: int) -> tuple[FloatArray, FloatArray]:
        indices = np.arange(begin, end) % self._seconds
        return self._attempts[indices], self._refusals[indices]

    def _advance(self, head: int) -> None:
        if head <= self._head:
            return
        new = np.arange(max(self._head + 1, head - self._seconds + 1), head + 1) % self._seconds
        self._attempts[new] = 0.0
        self._refusals[new] = 0.0
        self._head = head

    def _spread(self, since_s: float, until_s: float, attempts: float, refusals: float) -> None:
        """Add counts evenly over a time span; the part before the history is dropped."""
        if not attempts and not refusals:
            return
        self._last_request_s = max(self._last_request_s, until_s)
        last = math.floor(until_s)
        first = max(math.floor(since_s), self._head - self._seconds + 1)
        share_per_s = 1 / (until_s - since_s)
        for second in range(first, last + 1):
            share = share_per_s * (min(until_s, second + 1) - max(since_s, second))
            if share:
                index = second % self._seconds
                self._attempts[index] += share * attempts
                if refusals:
                    self._refusals[index] += share * refusals


def _or_never(time_s: float | None) -> float:
    return -math.inf if time_s is None else float(time_s)
