"""A rule of thumb: replicas for the busiest second of a window, times a headroom.

It has the highest rate of a replica within the SLA, which is most of the work. It has no forecast
and no memory beyond its window.
"""

import math

from autoscaler.scale_down import RecentMaximum
from autoscaler.simulator.scaling import FleetView


class Peak:
    """Sizes for the busiest second of the last `window_s` seconds, times `headroom`."""

    name = "peak"

    def __init__(self, sla_rate_per_s: float, headroom: float = 1.0, window_s: float = 60) -> None:
        self._rate_per_s = sla_rate_per_s
        self._headroom = headroom
        self._window_s = window_s
        self._peak = RecentMaximum()
        self.forecast_per_s = math.nan

    def replicas(self, view: FleetView) -> int:
        busiest_per_s = self._peak.add(view.now_s, view.offered, self._window_s - 1)
        self.forecast_per_s = self._headroom * busiest_per_s
        return max(1, math.ceil(self.forecast_per_s / self._rate_per_s - 1e-9))
