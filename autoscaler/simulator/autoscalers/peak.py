"""A rule of thumb: replicas for the busiest second of a window, times a headroom.

It has the highest rate of a replica within the SLA, which is most of the work. It has no forecast
and no memory beyond its window.
"""

import math
from collections import deque

from autoscaler.simulator.scaling import FleetView


class RecentMaximum:
    """The maximum of a sliding window; a value counts until it is older than `length_s`."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        # (time, value) of the values that no later one reaches.
        self._values: deque[tuple[float, float]] = deque()

    def add(self, now_s: float, value: float) -> float:
        """Add the current value, and return the maximum of the window."""
        while self._values and self._values[-1][1] <= value:
            self._values.pop()
        self._values.append((now_s, value))
        while now_s - self._values[0][0] > self._length_s:
            self._values.popleft()
        return self._values[0][1]


class Peak:
    """Sizes for the busiest second of the last `window_s` seconds, times `headroom`."""

    name = "peak"

    def __init__(self, sla_rate_per_s: float, headroom: float = 1.0, window_s: float = 60) -> None:
        self._rate_per_s = sla_rate_per_s
        self._headroom = headroom
        self._peak = RecentMaximum(window_s - 1)
        self.forecast_per_s = math.nan

    def replicas(self, view: FleetView) -> int:
        self.forecast_per_s = self._headroom * self._peak.add(view.now_s, view.offered)
        return max(1, math.ceil(self.forecast_per_s / self._rate_per_s - 1e-9))
