"""The offered load: the requests that clients sent, each counted once, whether answered or not.

Replicas count every try that reaches them. Completions would hide an overload, because no fleet
completes more than it can. Tries would count a request twice that one replica refused and another
accepted. `OfferedLoad` keeps the counts over time, and `autoscaler.retries` takes the retries out.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoscaler.clocks import MAX_LAG_S
from autoscaler.counted_seconds import CountedSeconds
from autoscaler.reports import ReplicaReport
from autoscaler.retries import offered_requests, retries_among
from policy.errors import InvalidInputError

FloatArray = NDArray[np.float64]

#: A replica that does not say since when it counts has served before if it is first seen this soon
#: after the very first report.
_SETTLE_S = 5.0
#: How many of the last seconds tell what is refused now.
_RECENT_S = 5
#: A replica that has been ready for this long should report: Ray's default is every ten seconds.
REPORTING_AFTER_S = 15.0
#: A replica that began to serve this soon after requests waited for one has got those requests.
_TOOK_WAITING_S = 2.0


@dataclass(frozen=True, eq=False)
class RecentTries:
    """The last seconds.

    Attributes
    ----------
    offered_per_s : ndarray of float, shape (seconds,)
        Requests per second, oldest first.
    attempts, refusals, finals : ndarray of float, shape (seconds,)
        Tries in each second, those of them that were refused, and those of the refusals that were
        not to be tried elsewhere.
    replicas : ndarray of float, shape (seconds,)
        Replicas that took the tries.
    """

    offered_per_s: FloatArray
    attempts: FloatArray
    refusals: FloatArray
    finals: FloatArray
    replicas: FloatArray


@dataclass(frozen=True, eq=False)
class RateHistory:
    """The recent offered load.

    Attributes
    ----------
    current_per_s : float
        Mean rate over the rate window, which ends at `end_s`, in requests per second.
    end_s : float
        The latest whole second that the reports of all replicas with timely reports cover.
    rates_per_s : ndarray of float, shape (seconds,)
        Rate of each second, oldest first; the last one ends at `end_s`.
    recent : RecentTries
        The last seconds of them.
    """

    current_per_s: float
    end_s: float
    rates_per_s: FloatArray
    recent: RecentTries


class _Counters(NamedTuple):
    """The counters in a replica's newest report."""

    time_s: float
    counted_s: float
    tries: float
    refusals: float
    final_refusals: float


class OfferedLoad:
    """Tries and refusals of all replicas over the last ten minutes, from their counters.

    The increase of a counter between two reports of its replica is spread evenly over the time
    between them; the first report of a replica, over the time for which it has counted. So a report
    that comes late, twice or out of order changes nothing. A counter that falls has restarted at 0.
    The counts of a replica that is gone remain.
    """

    def __init__(self) -> None:
        self._counted = CountedSeconds()
        self._counters: dict[str, _Counters] = {}
        # (time, ready replicas) of the last `REPORTING_AFTER_S`.
        self._ready: deque[tuple[float, int]] = deque()
        self._ready_since_s = math.inf
        # The latest time span in which requests waited for a first replica.
        self._waited_s = (math.inf, -math.inf)
        self._first_s = math.nan
        self._newest_s = -math.inf
        # No report in `_counters` is older.
        self._oldest_s = math.inf
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
        time_s, counted_s = report.time_s, report.counted_s
        known = self._counters.get(report.replica_id)
        if known is not None and not _is_newer(report, known):
            return False
        if math.isnan(self._first_s):
            self._first_s = time_s
        offered, refused = report.offered_total, report.refused_total
        final = report.refused_by_balancer_total
        self._counters[report.replica_id] = _Counters(time_s, counted_s, offered, refused, final)
        newest_s = self._newest_s
        if time_s > newest_s:
            self._newest_s = time_s
            self._counted.advance(math.floor(time_s))
        if time_s < self._oldest_s:
            self._oldest_s = time_s
        if known is None:
            if counted_s > 0:
                since_s = time_s - counted_s
            elif time_s - self._first_s > _SETTLE_S:
                since_s = min(newest_s, time_s - max(1.0, _least_time_s(report)))
            else:
                return True
            waited_since_s, waited_until_s = self._waited_s
            if waited_since_s <= since_s <= waited_until_s + _TOOK_WAITING_S:
                since_s = waited_since_s
            self._spread(since_s, time_s, offered, refused, final)
            return True
        known_s, known_counted_s, known_offered, known_refused, known_final = known
        if offered < known_offered or refused < known_refused:
            known_offered = known_refused = known_final = 0.0
            passed_s = counted_s or time_s - known_s
        elif counted_s > 0 and known_counted_s > 0:
            passed_s = counted_s - known_counted_s
        else:
            passed_s = time_s - known_s
        since_s = time_s - passed_s
        if abs(since_s - known_s) < 1 and known_s < time_s:
            since_s = known_s
        self._spread(
            since_s,
            time_s,
            offered - known_offered,
            refused - known_refused,
            max(0.0, final - known_final),
        )
        return True

    def note_waiting(self, since_s: float, now_s: float) -> None:
        """Note that requests have waited for a first replica since `since_s`.

        That replica gets them all at once when it starts, but that is not when they were sent.
        """
        self._waited_s = since_s, now_s

    def expect(self, now_s: float, ready_replicas: int) -> int:
        """Note how many replicas serve, and return how many of them should report.

        A replica that has just become ready need not report yet.
        """
        ready = self._ready
        if ready and not ready[-1][0] <= now_s <= ready[-1][0] + REPORTING_AFTER_S:
            ready.clear()
        if not ready:
            self._ready_since_s = now_s
        ready.append((now_s, ready_replicas))
        while ready[0][0] < now_s - REPORTING_AFTER_S:
            ready.popleft()
        expected = 0
        if now_s - self._ready_since_s >= REPORTING_AFTER_S:
            expected = min(count for _, count in ready)
        # A replica that has just gone may not have reported its last seconds.
        self._counted.expect(math.floor(now_s), expected, math.ceil(MAX_LAG_S))
        return expected

    def forget_before(self, cutoff_s: float) -> list[str]:
        """Forget replicas that have not reported since `cutoff_s`, but keep their counts.

        Returns
        -------
        list of str
            Their ids.
        """
        if self._oldest_s >= cutoff_s:
            return []
        forgotten = [name for name, seen in self._counters.items() if seen.time_s < cutoff_s]
        for name in forgotten:
            del self._counters[name]
        self._oldest_s = min((seen.time_s for seen in self._counters.values()), default=math.inf)
        return forgotten

    def history(
        self, now_s: float, window_s: float, retries: int, since_s: float = -math.inf
    ) -> RateHistory | None:
        """Return the rates up to the latest second that every live replica has reported.

        Parameters
        ----------
        now_s : float
            Reports with a later time, from clocks that are ahead, count as of now.
        window_s : float
            Length of the rate window, in s.
        retries : int
            Retries after which the balancer gives up.
        since_s : float
            The rates before it are known already, and left out unless they are in the window.

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
            (seen.time_s for seen in self._counters.values() if seen.time_s >= cutoff_s),
            default=newest_s,
        )
        end = math.floor(min(reported_s, newest_s))
        begin = max(math.ceil(self._first_s), self._counted.oldest)
        window = round(window_s)
        observed = end - begin
        if observed < max(2, window // 2):
            return None
        if math.isfinite(since_s):
            wanted = max(window, _RECENT_S, end - math.floor(since_s))
            begin = max(begin, end - wanted)
        attempts, refusals, replicas, finals = self._counted.between(begin, end)
        tried_again = retries_among(replicas, retries)
        not_final = refusals - finals
        rates_per_s = offered_requests(attempts, not_final, tried_again)
        offered = 0.0
        for number in {0, retries}:
            used = tried_again[-window:] == number
            if used.any():
                tried, refused = attempts[-window:][used].sum(), not_final[-window:][used].sum()
                offered += float(offered_requests(tried, refused, number))
        series = (rates_per_s, attempts, refusals, finals, replicas)
        return RateHistory(
            current_per_s=offered / min(window, observed),
            end_s=float(end),
            rates_per_s=rates_per_s,
            recent=RecentTries(*(values[-_RECENT_S:] for values in series)),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers, lists and dicts."""
        return {
            **self._counted.state_dict(),
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
            load._counted = CountedSeconds.from_state(state)
            load._counters = {
                # Earlier versions saved no final refusals.
                str(name): _Counters(
                    *(float(time_s), float(counted_s), float(offered), float(refused)),
                    float(sum(final)),
                )
                for name, (time_s, counted_s, offered, refused, *final) in state["counters"].items()
            }
            load._oldest_s = min(
                (seen.time_s for seen in load._counters.values()), default=math.inf
            )
            load._first_s = math.nan if state["first_s"] is None else float(state["first_s"])
            load._newest_s = _or_never(state["newest_s"])
            load._last_request_s = _or_never(state["last_request_s"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(f"offered load state: not usable ({error!r})") from error
        return load

    def _spread(
        self, since_s: float, until_s: float, attempts: float, refusals: float, finals: float
    ) -> None:
        """Add counts evenly over a time span; the part before the first report is dropped."""
        if (attempts or refusals) and until_s > self._last_request_s:
            self._last_request_s = until_s
        oldest = math.floor(self._first_s)
        self._counted.spread(since_s, until_s, attempts, refusals, oldest, finals)


def _is_newer(report: ReplicaReport, known: _Counters) -> bool:
    """Return whether a report is newer than the known one of its replica.

    The time for which it has counted decides, because a wall clock may be set back, unless the
    counters have restarted.
    """
    if report.counted_s > 0 and known.counted_s > 0:
        if report.time_s <= known.time_s:
            return report.counted_s > known.counted_s
        return report.counted_s != known.counted_s
    return report.time_s > known.time_s


def _least_time_s(report: ReplicaReport) -> float:
    """Return the least time in which a replica can have taken what it has accepted."""
    accepted = report.offered_total - report.refused_total
    return accepted * 1e-3 * report.full_batch_ms / report.full_batch_size


def _or_never(time_s: float | None) -> float:
    return -math.inf if time_s is None else float(time_s)
