"""The time that requests lose before this process can read them, and their answers after it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from deployments.haproxy.admin_answers import MeanTimes

#: Looks without news after which what was seen before says nothing any more.
_FORGET_AFTER = 10
#: HAProxy tells its means in whole ms: a difference of no more than this may be none.
_RESOLUTION_S = 1e-3
#: A request is drawn at most so many earlier tries.
_MAX_TRIES = 20
#: Share of a long wait at the replica that a request is spared at the balancer; measured.
_COMPENSATED = 0.5


class BalancerWait:
    """Compare the balancer's mean time of a request with the replica's own.

    The balancer counts from when it has read a request until its answer begins; the replica, from
    when it could have read the request at its last try until the answer is known. The difference
    has two parts, of which the balancer tells the means, and a request waits before:

    - Until the balancer reads it, of which the balancer tells a sample. One of these waits is drawn
      for each request, independent of the others.
    - Earlier tries that were refused. A request's number of them is drawn, as each try is refused
      with the probability that this replica refuses; all take the same time.
    - What it waits for the balancer's thread, there and back. Balancer and replica pass bursts to
      each other, and who waited long for one waits less for the other: it is the mean, less half of
      what the request waited here beyond the mean.
    """

    def __init__(self) -> None:
        self._thread_s = 0.0
        self._unread_s: NDArray[np.float64] = np.zeros(1)
        self._sample_age = 0
        self._try_s = self._tries_s = 0.0
        self._refused_share = 0.0
        self._response_times_s = 0.0
        self._requests = self._refused = 0
        self._looks_without_news = 0
        self._random = np.random.default_rng(1)

    @property
    def wait_s(self) -> float:
        """Mean of all this lately, beyond the way that the SLA allows for."""
        return self._thread_s + self._tries_s + float(self._unread_s.mean())

    def draw_s(self, response_times_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what each of some requests may have waited in seconds, shape (requests,).

        Parameters
        ----------
        response_times_s : ndarray of float, shape (requests,)
            As the replica sees them.
        """
        beyond_s = response_times_s - response_times_s.mean()
        waits_s: NDArray[np.float64] = np.maximum(0.0, self._thread_s - _COMPENSATED * beyond_s)
        if self._try_s:
            tries = self._random.geometric(1 - self._refused_share, response_times_s.size)
            waits_s += self._try_s * np.minimum(tries - 1, _MAX_TRIES)
        waits_s += self._random.choice(self._unread_s, response_times_s.size)
        return waits_s

    def answered(self, response_time_s: float) -> None:
        """Count a request that is not tried again, with its response time at the replica."""
        self._response_times_s += response_time_s
        self._requests += 1

    def revise(
        self,
        means: MeanTimes | None,
        *,
        refused: int,
        way_ms: float,
        unread_ms: Sequence[float] = (),
    ) -> None:
        """Take in what the balancer says of the requests since it last said something.

        Parameters
        ----------
        means : MeanTimes or None
            Its mean times of a request; None: it has nothing new to say.
        refused : int
            Tries that were refused since `revise` was last called.
        way_ms : float
            Time on the way to a replica and back that the SLA allows for.
        unread_ms : sequence of float
            How long requests waited until the balancer read them, as a sample; empty: it has
            nothing new to say.
        """
        self._sample_age = 0 if unread_ms else self._sample_age + 1
        if unread_ms:
            self._unread_s = 1e-3 * np.array(unread_ms)
        elif self._sample_age >= _FORGET_AFTER:
            self._unread_s = np.zeros(1)
        self._refused += refused
        if means is None:
            self._looks_without_news += 1
            if self._looks_without_news >= _FORGET_AFTER:
                self._thread_s = self._try_s = self._tries_s = 0.0
            return
        self._looks_without_news = 0
        requests, refused = self._requests, self._refused
        if requests:
            own_mean_s = self._response_times_s / requests
            beyond_s = 1e-3 * (means.total_ms - way_ms) - own_mean_s
            beyond_s = 0.0 if beyond_s <= _RESOLUTION_S else beyond_s
            tries_s = min(1e-3 * means.earlier_tries_ms, beyond_s) if refused else 0.0
            self._tries_s, self._thread_s = tries_s, beyond_s - tries_s
            self._refused_share = refused / (refused + requests)
            self._try_s = tries_s * requests / refused if refused else 0.0
        self._response_times_s, self._requests, self._refused = 0.0, 0, 0
