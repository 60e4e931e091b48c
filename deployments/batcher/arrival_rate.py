"""The batcher's estimate of its arrival rate."""

import math

#: A rate is contradicted by a count this many standard deviations below what it lets expect.
SURPRISE = 5.0
#: Counts over less time than this say more about pauses of the sender than about its rate.
SHORTEST_HORIZON_S = 0.05


class ArrivalRate:
    """Exponentially weighted arrival rate, O(1) per arrival.

    An arrival of age ``a`` weighs ``exp(-a / window) / window``. The sum is divided by the weight
    of the time since the first arrival, which corrects the bias of the first few windows.

    After a sudden drop of the load, such a mean is too high for several windows.
    `uncontradicted_per_s` therefore checks it against the requests counted of late.

    Parameters
    ----------
    window_s : float
        Time constant of the weights.

    Attributes
    ----------
    weight : float
        Rows counted, each weighing ``exp(-a / window)`` at the last arrival.
    horizon_s : float
        What was counted between one and two times this long ago, or later, counts as of late.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self.weight = 0.0
        self.horizon_s = window_s
        self._first_s = math.nan
        self._last_s = math.nan
        self._requests_weight = 0.0
        # The two last stretches of at least `horizon_s`: when they began, and requests counted.
        self._earlier_s = self._latest_s = math.nan
        self._earlier = self._latest = 0

    def look_back(self, longest_wait_s: float) -> None:
        """Set the horizon to the longest wait for company that a wrong rate can cause."""
        self.horizon_s = min(max(longest_wait_s, SHORTEST_HORIZON_S), self._window_s)

    def count(self, now_s: float, rows: int = 1) -> None:
        """Count an arrival of `rows` rows."""
        if math.isnan(self._first_s):
            self._first_s = self._last_s = self._earlier_s = self._latest_s = now_s
        # Requests are timestamped before they are parsed, so they may be slightly out of order.
        age_s = now_s - self._last_s
        if age_s > 0:
            keep = math.exp(-age_s / self._window_s)
            self.weight *= keep
            self._requests_weight *= keep
            self._last_s = now_s
        self.weight += rows
        self._requests_weight += 1
        if now_s - self._latest_s >= self.horizon_s:
            self._earlier_s, self._earlier = self._latest_s, self._latest
            self._latest_s, self._latest = now_s, 0
        self._latest += 1

    def per_s(self, now_s: float) -> float:
        """Return the estimate at `now_s`, in rows per second; 0 before the first arrival."""
        if math.isnan(self._first_s):
            return 0.0
        age_s = max(0.0, now_s - self._last_s)
        seen_s = max(now_s - self._first_s, 0.1 * self._window_s)
        share_seen = -math.expm1(-seen_s / self._window_s)
        return self.weight * math.exp(-age_s / self._window_s) / (self._window_s * share_seen)

    def uncontradicted_per_s(self, now_s: float) -> float:
        """Return the estimate, or the highest rate that the requests of late do not contradict.

        That is the upper end of the score interval of a Poisson mean, `SURPRISE` standard
        deviations above what was counted.
        """
        per_s = self.per_s(now_s)
        if math.isnan(self._first_s):
            return per_s
        rows = self.weight / self._requests_weight
        counted, time_s = self._earlier + self._latest, now_s - self._earlier_s
        expected = per_s * time_s / rows
        missing = expected - counted
        if missing <= 0 or missing * missing <= SURPRISE**2 * expected:
            return per_s
        spread = SURPRISE * math.sqrt(counted + SURPRISE**2 / 4)
        return rows * (counted + SURPRISE**2 / 2 + spread) / time_s
