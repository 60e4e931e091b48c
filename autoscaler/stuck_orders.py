"""Ordered replicas that do not start, because the cluster has no room for them or they fail."""

from dataclasses import dataclass, replace

from autoscaler.decision import FleetState

#: Ordered replicas that have not started after this many starts' time, and this long, are stuck.
_AFTER_STARTS, _AFTER_S = 2.0, 30.0


@dataclass(frozen=True)
class _Shortage:
    """Since when fewer replicas have served than were ordered.

    Attributes
    ----------
    since_s : float
    ready : int
        How many serve now.
    ordered : int
        The fewest that were ordered since then: later orders have not waited for as long.
    """

    since_s: float
    ready: int
    ordered: int


class StuckOrders:
    """Track how long replicas have been missing."""

    def __init__(self) -> None:
        self._shortage: _Shortage | None = None

    def observe(self, now_s: float, fleet: FleetState) -> None:
        """Note since when replicas have been missing without another one starting to serve."""
        ready, ordered = fleet.ready_replicas, fleet.current_replicas
        if ready is None:
            return
        if ready >= ordered:
            self._shortage = None
        elif self._shortage is None or ready > self._shortage.ready:
            self._shortage = _Shortage(now_s, ready, ordered)
        else:
            least = min(ordered, self._shortage.ordered)
            self._shortage = replace(self._shortage, ready=ready, ordered=least)

    def count(self, now_s: float, start_time_s: float) -> int:
        """Return how many ordered replicas have not started for much longer than starts take.

        Parameters
        ----------
        now_s : float
        start_time_s : float
            How long a start takes.
        """
        shortage = self._shortage
        if shortage is None or now_s < shortage.since_s + _AFTER_STARTS * start_time_s + _AFTER_S:
            return 0
        return max(0, shortage.ordered - shortage.ready)
