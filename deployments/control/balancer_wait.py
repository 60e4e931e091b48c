"""The time that requests lose before this process can read them, by the balancer's own clock."""

import random

#: Looks without news after which what was seen before says nothing any more.
_FORGET_AFTER = 10


class BalancerWait:
    """Compare the balancer's mean time of a request with the replica's own.

    The balancer counts from when it chose this replica until the replica began to answer; the
    replica, from when it could have read the request. The difference is what requests wait for a
    connection, and in sockets while the balancer or this process has no CPU. The balancer tells the
    mean only, so each request's wait is drawn from the exponential distribution of that mean.

    Attributes
    ----------
    wait_s : float
        Mean of that difference lately, beyond the way that the SLA allows for.
    """

    def __init__(self) -> None:
        self.wait_s = 0.0
        self._response_times_s = 0.0
        self._requests = 0
        self._looks_without_news = 0
        self._random = random.Random(1)

    def draw_s(self) -> float:
        """Return what one request may have waited, in seconds."""
        return self._random.expovariate(1 / self.wait_s) if self.wait_s else 0.0

    def answered(self, response_time_s: float) -> None:
        """Count a request, with its response time as the replica sees it."""
        self._response_times_s += response_time_s
        self._requests += 1

    def revise(self, balancers_mean_ms: float | None, refused: int, way_ms: float) -> None:
        """Take in what the balancer says of the requests since it last said something.

        Parameters
        ----------
        balancers_mean_ms : float or None
            Its mean time of a request, those refused included; None: it has nothing new to say.
        refused : int
            Requests refused since `revise` was last called, which took no time.
        way_ms : float
            Time on the way to a replica and back that the SLA allows for.
        """
        self._requests += refused
        if balancers_mean_ms is None:
            self._looks_without_news += 1
            if self._looks_without_news >= _FORGET_AFTER:
                self.wait_s = 0.0
            return
        self._looks_without_news = 0
        if self._requests:
            own_mean_s = self._response_times_s / self._requests
            self.wait_s = max(0.0, 1e-3 * (balancers_mean_ms - way_ms) - own_mean_s)
        self._response_times_s, self._requests = 0.0, 0
