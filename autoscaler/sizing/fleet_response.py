"""The predicted response time and power of a fixed fleet under random routing with retries.

Each of n replicas queues requests and starts batches as its policy says. It refuses a try if the
waiting room is full, or if it could not answer in time, and the load balancer then tries another
replica at random. With λ the arrival rate of the fleet, k the number of retries and P_full(a) the
probability that a replica with a tries per second refuses one, the rate of tries solves

    a = (λ/n) Σ_{j≤k} P_full(a)^j        (`rand_equilibrium`),

and P_busy = P_full(a). The response time of the fleet is then Theorem 2 of RAND
(`response_time_cdf`), with F_exe the distribution of the response time of the requests that
a replica accepts at rate a (`policy.response_time.evaluation.evaluate`).

Like the theorem, this takes tries at different replicas to be independent. A try takes less time
than a batch, so no replica counts twice: k is at most n - 1.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import inf

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoscaler.sizing.rand import rand_equilibrium, response_time_cdf
from policy.response_time.evaluation import Evaluation
from policy.try_delays import TryDelays

FloatArray = NDArray[np.float64]


class FleetResponse:
    """The response time and power of identical replicas that batch and queue.

    `evaluate_at` evaluates a replica at a rate of tries per second; what finds no room is refused.
    Requests arrive at all replicas together, Poisson. A response time ends at the client.
    `busy_probability` is P_busy; 1 if the replicas cannot carry the
    load.
    """

    def __init__(
        self,
        evaluate_at: Callable[[float], Evaluation],
        delays: TryDelays,
        arrival_rate_per_s: float,
        replicas: int,
    ) -> None:
        if delays.retries is not None:
            # A replica that refused is still full a try later, and the only one is not asked again.
            delays = replace(delays, retries=min(delays.retries, replicas - 1))
        self._delays = delays
        self._replicas = replicas
        evaluated_at = cache(evaluate_at)
        equilibrium = rand_equilibrium(
            arrival_rate_per_s,
            replicas,
            lambda rate_per_s: evaluated_at(rate_per_s).full_probability,
            delays.retries,
        )
        self.busy_probability = equilibrium.busy_probability
        self._attempt_rate_per_s = equilibrium.attempt_rate_per_s
        self._evaluated_at = evaluated_at

    @property
    def is_overloaded(self) -> bool:
        """Whether every try is refused; there is then no response time to speak of."""
        return self.busy_probability >= 1

    @property
    def _accepted(self) -> Evaluation:
        """One replica at the rate of tries that reach it; its times are of the accepted ones."""
        return self._evaluated_at(self._attempt_rate_per_s)

    @property
    def answered_share(self) -> float:
        """Fraction of all requests that some replica accepts before the retries run out."""
        retries = self._delays.retries
        return 1.0 if retries is None else 1 - self.busy_probability ** (retries + 1)

    def cdf(self, times_ms: ArrayLike) -> FloatArray:
        """Return the fraction of all requests answered within some times in ms, any shape."""
        return response_time_cdf(
            np.asarray(times_ms) - self._delays.reply_delay_ms,
            self.busy_probability,
            self._accepted.cdf,
            self._delays,
        )

    def service_level(self, response_time_ms: float) -> float:
        """Return the fraction of all requests answered within `response_time_ms`."""
        return float(self.cdf(response_time_ms))

    def percentile_ms(self, percentile: float) -> float:
        """Return the response time, in ms, at a percentile of all requests.

        It is infinite if fewer requests than that are ever answered.
        """
        share = percentile / 100
        return inf if share >= self.answered_share else self._time_ms(share, percentile)

    def answered_percentile_ms(self, percentile: float) -> float:
        """Return the response time, in ms, at a percentile of the answered requests.

        Those that exhaust their retries are left out, as in a measurement at the client.
        """
        return self._time_ms(self.answered_share * percentile / 100, percentile)

    def _time_ms(self, share: float, percentile: float) -> float:
        """Return the least time within which a share of all requests is answered, to 1e-9.

        The percentile of the answered ones at the first replica asked is a lower bound.
        """
        accepted_ms = self._accepted.response_percentile_ms(percentile)
        low = high = self._delays.round_trip_ms + accepted_ms
        while self.service_level(high) < share:
            low, high = high, 2 * high
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.service_level(middle) >= share else (middle, high)
        return high

    @property
    def mean_batch_size(self) -> float:
        return self._accepted.mean_batch_size

    @property
    def mean_power_w(self) -> float | None:
        """The mean power of all replicas together, in W; None if the profile has no energy."""
        power_w = self._accepted.mean_power_w
        return None if power_w is None else self._replicas * power_w
