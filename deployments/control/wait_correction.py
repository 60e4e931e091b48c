"""Shorten the policy's waits while more requests are late than the SLA allows."""


class WaitCorrection:
    """Keep the SLA on measured response times, by shortening the policy's waits.

    The policy's waits come from a model. Where the world is worse than the model (bursts, a noisy
    neighbor), more requests are late than the SLA allows, and waits shrink until it holds again.
    They grow back slowly while at most half of the allowed requests are late.

    Attributes
    ----------
    factor : float
        Multiplies the policy's maximum wait: 1 trusts the model, 0 starts batches at once.
    late_share : float
        Fraction of requests that were late, over about a window; 0 until half a window was seen.
    """

    #: The window holds as many requests as may include this many late ones: enough to measure the
    #: share, and more requests for a higher percentile.
    ALLOWED_LATE_PER_WINDOW = 10
    #: Factor by which waits shrink, and the step by which they grow.
    SHRINK, GROW = 0.8, 0.02

    def __init__(self) -> None:
        self.factor = 1.0
        self.late_share = 0.0
        self._requests = 0.0
        self._late = 0.0

    def revise(self, requests: int, late: int, late_share_allowed: float) -> float:
        """Record the latest requests, and return the factor for the next ones.

        Parameters
        ----------
        requests, late : int
            Requests answered since the last call, and the late ones among them.
        late_share_allowed : float
            Fraction of requests that the SLA allows to be late, above 0.
        """
        window = self.ALLOWED_LATE_PER_WINDOW / late_share_allowed
        keep = max(0.0, 1.0 - requests / window)
        self._requests = keep * self._requests + requests
        self._late = keep * self._late + late
        if self._requests < window / 2 or not requests:
            return self.factor
        self.late_share = self._late / self._requests
        if self.late_share > late_share_allowed:
            self.factor *= self.SHRINK
            # Judge the shorter wait mainly by the requests that come after it.
            self._late *= self.SHRINK
        elif self.late_share < late_share_allowed / 2:
            self.factor = min(1.0, self.factor + self.GROW)
        return self.factor
