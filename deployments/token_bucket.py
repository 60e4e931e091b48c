"""A token bucket: a mean rate, and a burst that may exceed it."""


class TokenBucket:
    """Admit events at a rate, and a burst of them after a pause. Time is an argument.

    The bucket starts full. Each event takes one unit; `rate_per_s` units per second refill it, up
    to `burst`.

    Parameters
    ----------
    rate_per_s : float
        Events per second in the long run, above 0.
    burst : float
        Most events at once, at least 1.
    """

    __slots__ = ("_at_s", "_level", "burst", "rate_per_s")

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._level = burst
        self._at_s: float | None = None

    def take(self, now_s: float) -> bool:
        """Return whether an event may happen at `now_s`; if so, count it.

        Time never goes back: an earlier `now_s` counts as the latest one so far.
        """
        self._fill(now_s)
        if self._level < 1.0:
            return False
        self._level -= 1.0
        return True

    def wait_s(self, now_s: float) -> float:
        """Return the time from `now_s` until the next event may happen."""
        self._fill(now_s)
        return max(0.0, 1.0 - self._level) / self.rate_per_s

    def resize(self, rate_per_s: float, burst: float, now_s: float) -> None:
        """Change the rate and the burst at `now_s`; the bucket stays equally full."""
        self._fill(now_s)
        self._level *= burst / self.burst
        self.rate_per_s, self.burst = rate_per_s, burst

    def _fill(self, now_s: float) -> None:
        if self._at_s is None:
            self._at_s = now_s
        elif now_s > self._at_s:
            self._level = min(self.burst, self._level + self.rate_per_s * (now_s - self._at_s))
            self._at_s = now_s
