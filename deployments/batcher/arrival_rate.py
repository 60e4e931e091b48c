"""The arrival rate as a batcher sees it."""

import math


class ArrivalRate:
    """Exponentially weighted arrival rate, O(1) per arrival.

    An arrival at age ``a`` weighs ``exp(-a / window) / window``. Until a window has passed since
    the first arrival, the sum is scaled up by the weight that the time before it would have had.

    Parameters
    ----------
    window_s : float
        Time constant: how long an arrival is remembered.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._weight = 0.0
        self._first_s = math.nan
        self._last_s = math.nan

    def count(self, now_s: float, rows: int = 1) -> None:
        """Count an arrival of `rows` rows."""
        if math.isnan(self._first_s):
            self._first_s = self._last_s = now_s
        # Arrivals are stamped before they are parsed, so they may come a little out of order.
        age_s = now_s - self._last_s
        if age_s > 0:
            self._weight *= math.exp(-age_s / self._window_s)
            self._last_s = now_s
        self._weight += rows

    def per_s(self, now_s: float) -> float:
        """Rows per second, as estimated at `now_s`; 0 before the first arrival."""
        if math.isnan(self._first_s):
            return 0.0
        age_s = max(0.0, now_s - self._last_s)
        seen_s = max(now_s - self._first_s, 0.1 * self._window_s)
        share_seen = -math.expm1(-seen_s / self._window_s)
        return self._weight * math.exp(-age_s / self._window_s) / (self._window_s * share_seen)
