"""How long replicas take to start: the horizon of the forecasts."""

import math
from collections.abc import Mapping

#: Until a start was seen.
DEFAULT_S = 10.0
_KEPT = 50
_PERCENTILE = 90


class StartTimes:
    """The start times of the latest replicas of a deployment."""

    def __init__(self) -> None:
        self._by_replica_s: dict[str, float] = {}
        self._horizon_s: float | None = DEFAULT_S

    def observe(self, replica_id: str, start_time_s: float) -> None:
        """Take in how long a replica took to start; what is known already changes nothing."""
        if self._by_replica_s.get(replica_id) == start_time_s:
            return
        self._by_replica_s[replica_id] = start_time_s
        if len(self._by_replica_s) > _KEPT:
            del self._by_replica_s[next(iter(self._by_replica_s))]
        self._horizon_s = None

    @property
    def horizon_s(self) -> float:
        """The 90th percentile of the start times: in nine of ten cases a replica is there by then.

        With the slowest of all instead, one bad start would be paid for until it is forgotten.
        """
        if self._horizon_s is None:
            seen = sorted(self._by_replica_s.values())
            self._horizon_s = seen[math.ceil(_PERCENTILE / 100 * len(seen)) - 1]
        return self._horizon_s

    def state_dict(self) -> dict[str, float]:
        """Give the start times by replica."""
        return dict(self._by_replica_s)

    @classmethod
    def from_state(cls, state: Mapping[str, float]) -> "StartTimes":
        """Make one that knows what `state_dict` gave.

        Raises
        ------
        TypeError, ValueError, AttributeError
            The state is not of this form.
        """
        known = cls()
        for replica_id, start_time_s in state.items():
            known.observe(str(replica_id), float(start_time_s))
        return known
