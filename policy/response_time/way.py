"""The way of a request to a replica and of its answer back, through a balancer.

The balancer is one server that takes requests and answers in the order in which they come. The way
there and the way back each cost half of its time per request, after what it has to do before. The
waits are those of M/D/1 by their mean and by the probability that there is one: with probability ρ
a request finds the balancer at work, and then waits an exponential time of the mean that the
formula of Pollaczek and Khinchine gives. Where a sample of the waits is known, they are drawn from
it: they contain the balancer's waits for a CPU. The answers of a batch reach the balancer together.

The way and the time at the replica are taken as independent. They are not quite: a balancer spreads
bursts. Against a simulation of both, percentiles up to the 99th are within 10% where the replica is
busy for up to 80% of the time, and up to 12% too high at 90%.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policy.errors import InvalidInputError
from policy.response_time.distribution import ResponseTimeDistribution

FloatArray = NDArray[np.float64]

#: The time on the way is represented by so many equally likely values.
_VALUES = 64
_DRAWS = 256 * _VALUES
_SEED = 20220902


@dataclass(frozen=True)
class BalancerLoad:
    """The balancer's time per request, its utilization, and the waits for it.

    Attributes
    ----------
    request_ms : float
        Time of the balancer per request, there and back.
    utilization : float
        Fraction of the time for which it is at work, for this replica and others.
    waits_ms : tuple of float
        A sample of how long what comes at a random time waits until the balancer reads it; empty:
        not known.

    Raises
    ------
    InvalidInputError
        The time is negative or not finite, or the utilization not from 0 to below 1.
    """

    request_ms: float
    utilization: float
    waits_ms: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.request_ms < np.inf:
            raise InvalidInputError(
                f"balancer: request_ms must be at least 0 and finite, not {self.request_ms:g}"
            )
        if not 0 <= self.utilization < 1:
            raise InvalidInputError(
                f"balancer: utilization must be at least 0 and below 1, not {self.utilization:g}"
            )

    def way_ms(self, mean_batch_size: float) -> FloatArray:
        """Return equally likely times on the way, ascending, shape (64,).

        Parameters
        ----------
        mean_batch_size : float
            Of the requests that are answered together.
        """
        random = np.random.default_rng(_SEED)
        one_way_ms, load = self.request_ms / 2, self.utilization
        time_ms = np.full(_DRAWS, self.request_ms)
        for _ in ("there", "back"):
            if self.waits_ms:
                time_ms += random.choice(self.waits_ms, _DRAWS)
                continue
            waits = random.random(_DRAWS) < load
            time_ms += waits * random.exponential(one_way_ms / (2 * (1 - load)), _DRAWS)
        time_ms += one_way_ms * np.floor(random.random(_DRAWS) * mean_batch_size)
        middles = (np.arange(_VALUES) + 0.5) / _VALUES
        return np.asarray(np.quantile(time_ms, middles))


class ClientResponseTimes(ResponseTimeDistribution):
    """Response times at the client: those of the replica, and the way.

    Parameters
    ----------
    replica : ResponseTimeDistribution
    way_ms : ndarray of float, shape (values,)
        Equally likely times on the way.
    """

    def __init__(self, replica: ResponseTimeDistribution, way_ms: FloatArray) -> None:
        super().__init__()
        self._replica, self._way_ms = replica, way_ms
        self.count = replica.count
        self.mean_ms = replica.mean_ms + float(way_ms.mean())

    def cdf(self, times_ms: FloatArray) -> FloatArray:
        """Return the fraction of requests with at most each response time, shapes (times,)."""
        at_replica_ms = np.maximum(times_ms[:, None] - self._way_ms, 0.0)
        within = self._replica.cdf(at_replica_ms.ravel()).reshape(at_replica_ms.shape)
        return np.asarray(within.mean(axis=1))
