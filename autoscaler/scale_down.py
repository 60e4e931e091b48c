"""When replicas may go: fewer have been enough for a while, and noise will not call them back.

The delay is a ski-rental problem: a replica that is kept costs by the second, and one that is let
go and then wanted again costs its start. Keeping it for as long as a start takes, and then letting
it go, costs at most twice the optimum in hindsight (Karlin, Manasse, Rudolph and Sleator,
Competitive snoopy caching, 1988). That rule assumes nothing about the future. The demand here
covers the next start time at a chosen risk, so a delay longer than noise lasts gains nothing.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable

from autoscaler.forecasting.load_history import WINDOW_S

#: Standard deviations of Poisson noise in a minute's rate that must not undo a scale-down.
_NOISE_DEVIATIONS = 4.0
#: Rate windows after which the noise in the offered rate is independent.
_NOISE_WINDOWS = 2
#: If the demand was unknown for longer than this, the delay starts over.
MAX_GAP_S = 10.0
#: How long the load must have been known before replicas of the first fleet go, at least; and how
#: much longer than a start.
_MIN_KNOWN_S, _BEYOND_START_S = 300.0, 60.0


def first_fleet_kept_s(start_time_s: float) -> float:
    """Return for how long the load must be known before replicas of the first fleet may go, in s.

    A replica let go now cannot be back before a start, and in that time the load has to have shown
    how it varies.
    """
    return max(_MIN_KNOWN_S, start_time_s + _BEYOND_START_S)


def default_scale_down_delay_s(start_time_s: float, window_s: float) -> float:
    """Return how long fewer replicas must have been enough: as long as noise, at most a start."""
    return min(start_time_s, _NOISE_WINDOWS * window_s)


class RecentMaximum:
    """The maximum of a sliding window."""

    def __init__(self) -> None:
        #: (time, value) of the values that no later one reaches, so that values descend.
        self.values: deque[tuple[float, float]] = deque()

    def add(self, now_s: float, value: float, length_s: float) -> float:
        """Add the current value, and return the maximum of those not older than `length_s`."""
        while self.values and self.values[-1][1] <= value:
            self.values.pop()
        self.values.append((now_s, value))
        while now_s - self.values[0][0] > length_s:
            self.values.popleft()
        return self.values[0][1]


class ScaleDownStabilizer:
    """Track the highest demand over the scale-down delay."""

    def __init__(self) -> None:
        self._demands = RecentMaximum()
        self._highest_per_s = 0.0
        self._since_s, self._observed_s = math.inf, -math.inf

    def observe(self, now_s: float, demand_per_s: float, delay_s: float) -> None:
        """Add the current demand, and forget demands older than the delay.

        After a gap, as an outage of the controller leaves one, the delay starts over.
        """
        if now_s - self._observed_s > MAX_GAP_S:
            self._since_s = now_s
        self._observed_s = now_s
        self._highest_per_s = self._demands.add(now_s, demand_per_s, delay_s)

    def watched_s(self, now_s: float) -> float:
        """Return for how long demands have been observed without a break, in s."""
        return now_s - self._since_s

    def held_until_s(self, delay_s: float, needs_all: Callable[[float], bool]) -> float:
        """Return when no demand that needs all replicas is remembered; infinity if unknown."""
        remembered = [*self._demands.values]
        index = bisect_left(remembered, True, key=lambda entry: not needs_all(entry[1]))
        if 0 < index < len(remembered):
            return remembered[index - 1][0] + delay_s
        return math.inf  # the present demand needs them, if only with the margin for noise

    def stable_demand_per_s(self, demand_per_s: float, offered_per_s: float) -> float:
        """Return the demand that the remaining replicas must cover, in requests per second.

        It is the highest of the delay, or the present one with a margin for the noise of the
        forecasts, which follow the last minute, if that is more.
        """
        noise = 0.0
        if offered_per_s > 0:
            noise = _NOISE_DEVIATIONS / math.sqrt(offered_per_s * WINDOW_S)
        return max(self._highest_per_s, (1 + noise) * demand_per_s)
