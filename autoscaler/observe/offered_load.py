"""The offered load: the requests that clients sent, each counted once, whether answered or not.

Replicas count every attempt that reaches them. Completions would hide an overload, because no fleet
completes more than it can. Attempts would count a request twice that one replica refused and
another accepted; `autoscaler.observe.retries` takes the retries out.

Some replicas may serve without a report. With random routing they have the same share of the load
as the others, so reported counts are multiplied by the replicas that should report and divided by
those that do.
"""

import math
from collections import defaultdict, deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoscaler.observe.replica_clocks import MAX_LAG_S
from autoscaler.observe.retries import offered_requests, retries_among
from autoscaler.reports import ReplicaReport

FloatArray = NDArray[np.float64]

#: Length of the history by the second.
_KEPT_S = 600
#: How many of the last seconds show what is refused now.
_RECENT_S = 5
#: A replica that has been ready for this long should report: Ray's default is every ten seconds.
REPORTING_AFTER_S = 15.0
#: A replica that began to serve this soon after requests waited for one has got those requests.
_TOOK_WAITING_S = 2.0
#: Replicas that may seem to be missing from a second, because they report at any time within it.
_MISSING_BY_ROUNDING = 0.5


@dataclass(frozen=True, eq=False)
class RecentAttempts:
    """The last seconds, each array of shape (seconds,) with the oldest first."""

    offered_per_s: FloatArray
    attempts: FloatArray
    refusals: FloatArray
    by_balancer: FloatArray
    replicas: FloatArray


@dataclass(frozen=True, eq=False)
class RateHistory:
    """The recent offered load, in requests per second.

    `current_per_s` is the mean over the rate window. It and `rates_per_s`, by the second and oldest
    first, end at `end_s`: the latest whole second that the reports of all replicas with timely
    reports cover.
    """

    current_per_s: float
    end_s: float
    rates_per_s: FloatArray
    recent: RecentAttempts


@dataclass(slots=True)
class _Second:
    """The counts of one second, and the replicas whose reports cover it or should."""

    attempts: float = 0.0
    refusals: float = 0.0
    by_balancer: float = 0.0
    covered: float = 0.0
    expected: float = 0.0


class OfferedLoad:
    """Attempts and refusals of all replicas over the last ten minutes, from their counters.

    The increase of a counter between two reports of its replica is spread evenly over the time
    between them; the first report of a replica, over the time for which it has counted. So a report
    that comes late, twice or out of order changes nothing. A counter that falls has restarted at 0.
    The counts of a replica that is gone remain.

    Times are minus infinity before the first report, or the first with a new request.
    """

    def __init__(self) -> None:
        self.first_s = self.newest_s = self.last_request_s = -math.inf
        self._head = 0
        self._seconds: defaultdict[int, _Second] = defaultdict(_Second)
        #: The newest report of each replica.
        self.reports: dict[str, ReplicaReport] = {}
        # (time, ready replicas) of the last `REPORTING_AFTER_S`.
        self._ready: deque[tuple[float, int]] = deque()
        self._ready_since_s = math.inf
        # The latest time span in which requests waited for a first replica.
        self._waited_s = (math.inf, -math.inf)

    def observe(self, report: ReplicaReport, weight: float = 1.0) -> bool:
        """Add a report; return whether it is newer than the last one of its replica.

        A standby takes no share of the load, so its reports cover no time.
        """
        time_s, counted_s = report.time_s, report.counted_s
        known = self.reports.get(report.replica_id)
        if known is not None and not _is_newer(report, known):
            return False
        if math.isinf(self.first_s):
            self.first_s = time_s
        self.reports[report.replica_id] = report
        if time_s > self.newest_s:
            self.newest_s = time_s
            self._advance(math.floor(time_s))
        if known is None and weight > 1:
            return True  # other replicas of the sample covered its past
        attempts, refusals = report.offered_total, report.refused_total
        by_balancer = report.refused_by_balancer_total
        if known is None or attempts < known.offered_total or refusals < known.refused_total:
            since_s = time_s - counted_s
            waited_since_s, waited_until_s = self._waited_s
            if known is None and waited_since_s <= since_s <= waited_until_s + _TOOK_WAITING_S:
                since_s = waited_since_s
        else:
            since_s = time_s - (counted_s - known.counted_s)
            if abs(since_s - known.time_s) < 1 and known.time_s < time_s:
                since_s = known.time_s
            attempts, refusals = attempts - known.offered_total, refusals - known.refused_total
            by_balancer = max(0.0, by_balancer - known.refused_by_balancer_total)
        if attempts:
            self.last_request_s = max(self.last_request_s, time_s)
        if attempts or not report.standby:
            counts = (weight * attempts, weight * refusals, weight * by_balancer)
            self._spread(since_s, time_s, weight, *counts)
        return True

    def note_waiting(self, since_s: float, now_s: float) -> None:
        """Record that requests have waited for a first replica since `since_s`.

        That replica gets them all at once when it starts, but that is not when they were sent.
        """
        self._waited_s = since_s, now_s

    def expect(self, now_s: float, ready_replicas: int) -> int:
        """Record how many replicas serve, and return how many of them should report.

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
        second = math.floor(now_s)
        self._advance(second)
        self._seconds[second].expected = expected
        # A replica that has just gone may not have reported its last seconds.
        for earlier in range(second - math.ceil(MAX_LAG_S), second):
            if earlier in self._seconds:
                at = self._seconds[earlier]
                at.expected = min(at.expected, expected)
        return expected

    def history(
        self, now_s: float, window_s: float, retries: int, since_s: float = -math.inf
    ) -> RateHistory | None:
        """Return the rates up to the latest second that every live replica has reported.

        Reports later than `now_s`, from clocks that are ahead, count as of now. Rates before
        `since_s` are left out unless they are in the window. None until half of the window has been
        observed.
        """
        newest_s = min(self.newest_s, now_s)
        if not math.isfinite(newest_s):
            return None
        cutoff_s = newest_s - MAX_LAG_S
        reported_s = min(
            (seen.time_s for seen in self.reports.values() if seen.time_s >= cutoff_s),
            default=newest_s,
        )
        end = math.floor(min(reported_s, newest_s))
        begin = max(math.ceil(self.first_s), self._head - _KEPT_S + 1)
        window = round(window_s)
        observed = end - begin
        if observed < max(2, window // 2):
            return None
        if math.isfinite(since_s):
            begin = max(begin, end - max(window, _RECENT_S, end - math.floor(since_s)))
        *counts, replicas = self._between(begin, end)
        retries_by_second = retries_among(replicas, retries)
        rates_per_s = offered_requests(counts[0], counts[1], counts[2], retries_by_second)
        offered = 0.0
        for number in {0, retries}:
            used = retries_by_second[-window:] == number
            tried, refused, denied = (values[-window:][used].sum() for values in counts)
            offered += float(offered_requests(tried, refused, denied, number))
        series = (rates_per_s, *counts, replicas)
        return RateHistory(
            current_per_s=offered / min(window, observed),
            end_s=float(end),
            rates_per_s=rates_per_s,
            recent=RecentAttempts(*(values[-_RECENT_S:] for values in series)),
        )

    def _advance(self, head: int) -> None:
        if head > self._head:
            self._head = head
            oldest = head - _KEPT_S + 1
            for second in [one for one in self._seconds if one < oldest]:
                del self._seconds[second]

    def _spread(
        self,
        since_s: float,
        until_s: float,
        weight: float,
        attempts: float,
        refusals: float,
        by_balancer: float,
    ) -> None:
        """Add counts evenly over a time span; the part before the first report is dropped."""
        if until_s <= since_s:
            return
        oldest = max(math.floor(self.first_s), self._head - _KEPT_S + 1)
        for second in range(max(math.floor(since_s), oldest), math.floor(until_s) + 1):
            covered_s = min(until_s, second + 1) - max(since_s, second)
            if covered_s > 0:
                at, share = self._seconds[second], covered_s / (until_s - since_s)
                at.covered += weight * covered_s
                at.attempts += share * attempts
                at.refusals += share * refusals
                at.by_balancer += share * by_balancer

    def _between(self, begin: int, end: int) -> tuple[FloatArray, ...]:
        """Return attempts, refusals, those by HAProxy, and replicas by the second.

        The share of silent replicas is included.
        """
        nothing = _Second()
        seconds = [self._seconds.get(second, nothing) for second in range(begin, end)]
        names = ("attempts", "refusals", "by_balancer", "covered")
        counts = tuple(np.array([getattr(one, name) for one in seconds]) for name in names)
        covered, expected = counts[-1], np.array([one.expected for one in seconds])
        missing = (expected - covered > _MISSING_BY_ROUNDING) & (covered > 0)
        if missing.any():
            factor = np.where(missing, expected / np.maximum(covered, _MISSING_BY_ROUNDING), 1.0)
            return tuple(factor * count for count in counts)
        return counts


def _is_newer(report: ReplicaReport, known: ReplicaReport) -> bool:
    """Return whether a report is newer than the known one of its replica.

    The time for which it has counted decides, because a wall clock may be set back, unless the
    counters have restarted.
    """
    if report.time_s <= known.time_s:
        return report.counted_s > known.counted_s
    return report.counted_s != known.counted_s
