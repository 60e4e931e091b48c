"""A clock that never goes back, and the replicas' reports on it, whatever their clocks show.

A report carries the time at its replica. If the clock of a node is seconds behind, the counts of
its replicas fall into the wrong seconds, and the replicas look as if they had stopped to report.
But a report that has just arrived was recorded just before. So a replica's clock is corrected if
even the fastest of its latest reports seems to come too late, or from the future.
"""

from collections import deque
from dataclasses import dataclass, field

from autoscaler.reports import ReplicaReport

#: Reports usually take one to two seconds to arrive; up to this much is not corrected.
MAX_LAG_S = 3.0
#: The lag that is assumed for the fastest report of a replica whose clock is corrected.
_USUAL_LAG_S = 1.0
#: A first report that seems older than this comes from another clock.
_MAX_FIRST_LAG_S = 10.0
#: The number of latest reports, of which the fastest counts.
_LAGS = 20
#: Up to this difference the time of a report is taken as it is.
_TOLERANCE_S = 1.0


@dataclass
class _Clock:
    """How one replica's clock relates to the controller's.

    Attributes
    ----------
    shift_s : float
        What must be added to the replica's clock.
    read_s : float
        The clock at the newest report.
    placed_s : float
        When the newest report was recorded, on the controller's clock.
    lags_s : deque of float
        By how much the latest reports came late.
    """

    shift_s: float
    read_s: float = float("nan")
    placed_s: float = float("nan")
    lags_s: deque[float] = field(default_factory=lambda: deque(maxlen=_LAGS))


class SteadyClock:
    """The wall clock, but for its steps back: then it goes on as if there had been none.

    Seconds that were counted already cannot come again, and the forecasts go by the time of day.
    """

    def __init__(self) -> None:
        self._last_s = self._last_monotonic_s = float("-inf")

    def now_s(self, wall_s: float, monotonic_s: float) -> float:
        """Return the time.

        Parameters
        ----------
        wall_s, monotonic_s : float
            By `time.time` and `time.monotonic`.
        """
        passed_s = monotonic_s - self._last_monotonic_s
        is_first = self._last_s == float("-inf")
        self._last_s = wall_s if is_first else max(wall_s, self._last_s + passed_s)
        self._last_monotonic_s = monotonic_s
        return self._last_s


class ReplicaClocks:
    """The clocks of a deployment's replicas.

    The clock of a replica is the time for which it has counted, which nobody can set. If a report
    lacks it, its wall clock is used.
    """

    def __init__(self) -> None:
        self._clocks: dict[str, _Clock] = {}

    def place(self, report: ReplicaReport, now_s: float) -> float:
        """Return when a report was recorded on the controller's clock, at most `now_s`.

        Parameters
        ----------
        report : ReplicaReport
        now_s : float
            When it was read, on the controller's clock.
        """
        read_s = report.counted_s or report.time_s
        clock = self._clocks.get(report.replica_id)
        if clock is None:
            lag_s = now_s - report.time_s
            is_plausible = 0 <= lag_s <= _MAX_FIRST_LAG_S
            placed_s = report.time_s if is_plausible else now_s - _USUAL_LAG_S
            clock = self._clocks[report.replica_id] = _Clock(placed_s - read_s)
        elif read_s == clock.read_s:
            return clock.placed_s
        lag_s = now_s - (read_s + clock.shift_s)
        if lag_s < 0:
            clock.shift_s += lag_s
            clock.lags_s.clear()
            lag_s = 0.0
        clock.lags_s.append(lag_s)
        if lag_s > MAX_LAG_S and len(clock.lags_s) == _LAGS and min(clock.lags_s) > MAX_LAG_S:
            clock.shift_s += min(clock.lags_s) - _USUAL_LAG_S
            clock.lags_s.clear()
        placed_s = min(read_s + clock.shift_s, now_s)
        if abs(placed_s - report.time_s) <= _TOLERANCE_S:
            placed_s = min(report.time_s, now_s)
        clock.read_s, clock.placed_s = read_s, placed_s
        return placed_s

    def forget(self, replica_id: str) -> None:
        """Forget a replica that is gone."""
        self._clocks.pop(replica_id, None)
