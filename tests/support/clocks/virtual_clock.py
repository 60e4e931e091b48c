"""A clock on which sleeping takes no real time."""


class VirtualClock:
    """Stands in for `time`: each sleep ends after this share of it, and so much later."""

    def __init__(self, late_s: float = 0.0, share: float = 1.0) -> None:
        self.now_s = 0.0
        self.sleeps = 0
        self._late_s, self._share = late_s, share

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.sleeps += 1
        # At least a nanosecond: half of the last bit would be lost to rounding.
        self.now_s += max(self._share * duration_s, 1e-9) + self._late_s
