"""The batcher's estimate of its arrival rate."""

import math

#: Standard deviations between a count of requests and the upper confidence bound of their mean.
BOUND_DEVIATIONS = 5.0
#: Poisson arrivals make a pause of so many mean gaps after one arrival in 150.
LONGEST_PAUSE = 5.0
#: What is to be below a rate is so much later than equal to it: far more than rounding makes.
PAUSE_MARGIN_S = 1e-6
#: Counts over less time than this say more about pauses of the sender than about its rate.
SHORTEST_HORIZON_S = 0.05


def horizon_s(longest_wait_s: float, window_s: float) -> float:
    """Return over what time to count recent requests, in seconds.

    It is the longest wait for company that a wrong rate can cause, within bounds.
    """
    return min(max(longest_wait_s, SHORTEST_HORIZON_S), window_s)


class ArrivalRate:
    """Exponentially weighted arrival rate, O(1) per arrival.

    An arrival of age ``a`` weighs ``exp(-a / window) / window``. The sum is divided by the weight
    of the time since the first arrival, which corrects the bias of the first few windows.

    After a sudden drop of the load, such a mean is too high for several windows. `bounded_per_s`
    is therefore no higher than a confidence bound from the recent requests; and after a pause of
    `LONGEST_PAUSE` mean gaps, no higher than one request in the time since the last one.

    `weight` are the rows counted, each weighing ``exp(-a / window)`` at the last arrival. Requests
    are counted in stretches of at least `horizon_s`, which may be assigned; those of the last two
    are recent.
    """

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self.weight = 0.0
        self.horizon_s = window_s
        self._first_s = math.nan
        self._last_s = math.nan
        self._requests_weight = 0.0
        # The two last stretches of at least `horizon_s`: when they began, and requests counted.
        self._earlier_s = self._latest_s = math.nan
        self._earlier = self._latest = 0

    def count(self, now_s: float, rows: int = 1) -> None:
        if math.isnan(self._first_s):
            self._first_s = self._last_s = self._earlier_s = self._latest_s = now_s
        # Requests are timestamped before they are parsed, so they may be slightly out of order.
        age_s = now_s - self._last_s
        if age_s > 0:
            keep = math.exp(-age_s / self.window_s)
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
        seen_s = max(now_s - self._first_s, 0.1 * self.window_s)
        share_seen = -math.expm1(-seen_s / self.window_s)
        return self.weight * math.exp(-age_s / self.window_s) / (self.window_s * share_seen)

    def bounded_per_s(self, now_s: float) -> float:
        """Return the estimate at the last arrival, or what recent requests or a pause allow.

        For recent requests, it is the upper end of the score interval of a Poisson mean: what was
        counted is `BOUND_DEVIATIONS` standard deviations below it.
        """
        if math.isnan(self._first_s):
            return 0.0
        per_s, rows = self._recent_per_s(), self._rows_per_request
        pause_s = now_s - self._last_s
        if pause_s * per_s > LONGEST_PAUSE * rows:
            return rows / pause_s
        return per_s

    def falls_below_s(self, per_s: float) -> float:
        """Return when `bounded_per_s`, now at least `per_s`, is below it if nothing arrives."""
        rows = self._rows_per_request
        pause_s = max(LONGEST_PAUSE * rows / self._recent_per_s(), rows / per_s)
        return self._last_s + pause_s + PAUSE_MARGIN_S

    @property
    def _rows_per_request(self) -> float:
        return self.weight / self._requests_weight

    def _recent_per_s(self) -> float:
        """Return the estimate at the last arrival, or the bound of the recent requests."""
        per_s, rows = self.per_s(self._last_s), self._rows_per_request
        counted, time_s = self._earlier + self._latest, self._last_s - self._earlier_s
        expected = per_s * time_s / rows
        missing = expected - counted
        if missing <= 0 or missing * missing <= BOUND_DEVIATIONS**2 * expected:
            return per_s
        spread = BOUND_DEVIATIONS * math.sqrt(counted + BOUND_DEVIATIONS**2 / 4)
        return rows * (counted + BOUND_DEVIATIONS**2 / 2 + spread) / time_s
