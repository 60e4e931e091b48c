"""The time of reports on the controller's clock, whatever the replicas' clocks show.

A report carries the time at its replica. If the clock of a node is seconds behind, the counts of
its replicas fall into the wrong seconds, and the replicas look as if they had stopped reporting.
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
    """How the time for which a replica has counted relates to the controller's clock."""

    shift_s: float
    lags_s: deque[float] = field(default_factory=lambda: deque(maxlen=_LAGS))


class ReplicaClocks:
    """The clocks of a deployment's replicas: the steady time for which each has counted."""

    def __init__(self) -> None:
        self._clocks: dict[str, _Clock] = {}

    def place(self, report: ReplicaReport, now_s: float) -> float:
        """Return when a report was recorded on the controller's clock, at most `now_s`."""
        counted_s = report.counted_s
        clock = self._clocks.get(report.replica_id)
        if clock is None:
            is_plausible = 0 <= now_s - report.time_s <= _MAX_FIRST_LAG_S
            placed_s = report.time_s if is_plausible else now_s - _USUAL_LAG_S
            clock = self._clocks[report.replica_id] = _Clock(placed_s - counted_s)
        lag_s = now_s - (counted_s + clock.shift_s)
        if lag_s < 0:
            clock.shift_s += lag_s
            clock.lags_s.clear()
            lag_s = 0.0
        clock.lags_s.append(lag_s)
        if lag_s > MAX_LAG_S and len(clock.lags_s) == _LAGS and min(clock.lags_s) > MAX_LAG_S:
            clock.shift_s += min(clock.lags_s) - _USUAL_LAG_S
            clock.lags_s.clear()
        placed_s = min(counted_s + clock.shift_s, now_s)
        if abs(placed_s - report.time_s) <= _TOLERANCE_S:
            placed_s = min(report.time_s, now_s)
        return placed_s

    def forget(self, replica_id: str) -> None:
        self._clocks.pop(replica_id, None)
