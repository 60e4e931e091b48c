"""The batcher's estimate of its arrival rate."""

import math


class ArrivalRate:
    """Exponentially weighted arrival rate, O(1) per arrival.

    An arrival of age ``a`` weighs ``exp(-a / window) / window``. The sum is divided by the weight
    of the time since the first arrival, which corrects the bias of the first few windows.

    Parameters
    ----------
    window_s : float
        Time constant of the weights.

    Attributes
    ----------
    weight : float
        Rows counted, each weighing ``exp(-a / window)`` at the last arrival.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self.weight = 0.0
        self._first_s = math.nan
        self._last_s = math.nan

    def count(self, now_s: float, rows: int = 1) -> None:
        """Count an arrival of `rows` rows."""
        if math.isnan(self._first_s):
            self._first_s = self._last_s = now_s
        # Requests are timestamped before they are parsed, so they may be slightly out of order.
        age_s = now_s - self._last_s
        if age_s > 0:
            self.weight *= math.exp(-age_s / self._window_s)
            self._last_s = now_s
        self.weight += rows

    def per_s(self, now_s: float) -> float:
        """Return the estimate at `now_s`, in rows per second; 0 before the first arrival."""
        if math.isnan(self._first_s):
            return 0.0
        age_s = max(0.0, now_s - self._last_s)
        seen_s = max(now_s - self._first_s, 0.1 * self._window_s)
        share_seen = -math.expm1(-seen_s / self._window_s)
        return self.weight * math.exp(-age_s / self._window_s) / (self._window_s * share_seen)
