"""A rule of thumb to beat: enough replicas for the busiest second of a window, times a headroom.

It knows the highest rate of a replica within the SLA, which is most of the work. It neither looks
ahead nor remembers more than its window, a minute unless it is tuned.
"""

import math
from collections import deque

from autoscaler.simulator.scaling import FleetView
from policy.errors import InvalidInputError


class PeakOfMinute:
    """Sizes for the busiest second of the last `window_s`, times a headroom.

    Parameters
    ----------
    sla_rate_per_s : float
        Highest arrival rate of one replica within the SLA.
    headroom : float
        Factor on the peak: 1.2 keeps 20% more.
    window_s : int
        Seconds to look back.
    name : str

    Raises
    ------
    InvalidInputError
        A value is not above 0.
    """

    def __init__(
        self,
        sla_rate_per_s: float,
        headroom: float = 1.0,
        window_s: int = 60,
        name: str = "peak of the last minute",
    ) -> None:
        if not (0 < sla_rate_per_s < math.inf and headroom > 0 and window_s >= 1):
            raise InvalidInputError(
                "sla_rate_per_s, headroom and window_s must be above 0, not "
                f"{sla_rate_per_s:g}, {headroom:g} and {window_s}"
            )
        self.name = name
        self._rate_per_s = sla_rate_per_s
        self._headroom = headroom
        self._window_s = window_s
        # (second, requests): seconds ascend and requests descend; a later and busier second
        # supersedes the earlier ones.
        self._peaks: deque[tuple[float, float]] = deque()

    @property
    def forecast_per_s(self) -> float:
        """Arrival rate that it last sized for; NaN before the first."""
        return self._headroom * (self._peaks[0][1] if self._peaks else math.nan)

    def replicas(self, view: FleetView) -> int:
        """Return how many replicas should be ordered."""
        while self._peaks and self._peaks[-1][1] <= view.offered:
            self._peaks.pop()
        self._peaks.append((view.now_s, view.offered))
        while self._peaks[0][0] <= view.now_s - self._window_s:
            self._peaks.popleft()
        return max(1, math.ceil(self.forecast_per_s / self._rate_per_s - 1e-9))
