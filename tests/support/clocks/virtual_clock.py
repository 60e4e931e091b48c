"""A clock on which sleeping takes no real time."""


class VirtualClock:
    """Stands in for the module `time` in code that sleeps and measures.

    Parameters
    ----------
    late_s : float
        How much longer than asked each sleep takes.
    share : float
        The share of a sleep after which it returns, to try early wake-ups.
    """

    def __init__(self, late_s: float = 0.0, share: float = 1.0) -> None:
        self.now_s = 0.0
        self.sleeps = 0
        self._late_s, self._share = late_s, share

    def perf_counter(self) -> float:
        """Return the virtual time in seconds."""
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        """Let the virtual time pass."""
        self.sleeps += 1
        # At least a nanosecond: half of the last bit would be lost to rounding.
        self.now_s += max(self._share * duration_s, 1e-9) + self._late_s
