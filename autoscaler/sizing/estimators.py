"""Sizing: the least number of replicas whose predicted service level meets the SLA.

What predicts is an `Estimator`; the search asks it and nothing else. `FullBatchEstimator`, here,
costs a few microseconds; `autoscaler.sizing.batch_queue_estimator` knows the batching policy and costs more.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Protocol, TypeVar

from autoscaler.sizing.rand import busy_probability, retried_response_time_cdf
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective


@dataclass(frozen=True)
class TryDelays:
    """What a try costs between the load balancer and a replica.

    The defaults fit HAProxy on one machine, where a refused try costs about 0.5 ms.

    Attributes
    ----------
    request_delay_ms, reply_delay_ms : float
        From the balancer to the replica, and the refusal's way back: d₁ and d₂ of RAND.
    retry_delay_ms : float
        What the balancer waits before it tries another replica: Δ of RAND.
    retries : int or None
        Retries after which the balancer gives up; None: as many as fit into the response time.
    """

    request_delay_ms: float = 0.25
    reply_delay_ms: float = 0.25
    retry_delay_ms: float = 0.0
    retries: int | None = None

    def __post_init__(self) -> None:
        for name in ("request_delay_ms", "reply_delay_ms", "retry_delay_ms"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidInputError(f"{name}: must be at least 0, not {getattr(self, name)}")
        if self.retries is not None and self.retries < 0:
            raise InvalidInputError(f"retries: must be at least 0, not {self.retries}")

    @property
    def way_ms(self) -> float:
        """Time on the way to the replica and back: d₁ + d₂."""
        return self.request_delay_ms + self.reply_delay_ms

    @property
    def try_ms(self) -> float:
        """Time from one try to the next: d₁ + d₂ + Δ."""
        return self.request_delay_ms + self.reply_delay_ms + self.retry_delay_ms


@dataclass(frozen=True)
class Prediction:
    """What `replicas` replicas make of an arrival rate.

    Attributes
    ----------
    replicas : int
    service_level : float
        Fraction of the requests answered within the SLA's response time.
    percentile_ms : float
        The SLA's percentile of the response time; infinite where that share is never answered.
    """

    replicas: int
    service_level: float
    percentile_ms: float

    def meets(self, objective: ServiceLevelObjective) -> bool:
        """Tell whether the predicted service level is at least the SLA's."""
        return self.service_level >= objective.percentile / 100


P_co = TypeVar("P_co", bound=Prediction, covariant=True)
P = TypeVar("P", bound=Prediction)


class Estimator(Protocol[P_co]):
    """Predicts the response time of a number of replicas."""

    @property
    def capacity_per_s(self) -> float:
        """Highest rate that one replica can carry; at it or above, nothing is ever enough."""

    @property
    def monotone(self) -> bool:
        """Whether one replica more never turns an SLA that is met into one that is not."""

    def predict(
        self, arrival_rate_per_s: float, replicas: int, objective: ServiceLevelObjective
    ) -> P_co:
        """Predict the response time of `replicas` replicas that share the arrivals."""

    def check_feasible(self, objective: ServiceLevelObjective) -> None:
        """Raise `InfeasibleError` where no number of replicas can meet the SLA."""


@dataclass(frozen=True)
class FullBatchEstimator:
    """A replica as one server of RAND: it works in full batches and refuses while it is busy.

    Its service rate is that of full batches and its execution time that of a full batch, always
    the same, so that Theorem 2 has a closed form: with m tries fitting into the response time,
    1 - P_busy^m. That is monotone in the replicas, the arrival rate, and the response time.

    Attributes
    ----------
    service_rate_per_s : float
        Requests per second at full batches.
    execution_time_ms : float
        Time of a full batch.
    delays : TryDelays
    """

    service_rate_per_s: float
    execution_time_ms: float
    delays: TryDelays = TryDelays()

    monotone = True

    def __post_init__(self) -> None:
        for name in ("service_rate_per_s", "execution_time_ms"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidInputError(f"{name}: must be above 0, not {getattr(self, name)}")

    @property
    def capacity_per_s(self) -> float:
        """Highest rate that one replica can carry."""
        return self.service_rate_per_s

    def predict(
        self, arrival_rate_per_s: float, replicas: int, objective: ServiceLevelObjective
    ) -> Prediction:
        """Predict by Theorem 2."""
        delays = self.delays
        busy = busy_probability(arrival_rate_per_s, replicas, self.service_rate_per_s)
        level = retried_response_time_cdf(
            objective.response_time_ms,
            busy,
            self.execution_time_ms,
            delays.request_delay_ms,
            delays.reply_delay_ms,
            delays.retry_delay_ms,
            delays.retries,
        )
        return Prediction(replicas, float(level), self._percentile_ms(busy, objective))

    def check_feasible(self, objective: ServiceLevelObjective) -> None:
        """Raise `InfeasibleError` where even an idle replica answers too late."""
        least_ms = self.delays.request_delay_ms + self.execution_time_ms
        if objective.response_time_ms < least_ms:
            raise InfeasibleError(
                f"no number of replicas answers {objective.in_words()}: a full batch takes "
                f"{self.execution_time_ms:.4g} ms and the way there "
                f"{self.delays.request_delay_ms:.4g} ms; allow {least_ms:.4g} ms or more, or "
                "lower the maximum batch size"
            )

    def _percentile_ms(self, busy: float, objective: ServiceLevelObjective) -> float:
        if busy >= 1:
            return math.inf
        first_ms = self.delays.request_delay_ms + self.execution_time_ms
        if busy <= 1 - objective.percentile / 100:
            return first_ms
        retries = math.ceil(math.log1p(-objective.percentile / 100) / math.log(busy) - 1 - 1e-9)
        if self.delays.retries is not None and retries > self.delays.retries:
            return math.inf
        return first_ms + retries * self.delays.try_ms


def least_replicas(
    estimator: Estimator[P],
    arrival_rate_per_s: float,
    objective: ServiceLevelObjective,
    min_replicas: int = 1,
    max_replicas: int = 1000,
) -> P:
    """Find the least number of replicas whose predicted service level meets the SLA.

    Where the estimator is monotone the number is found by bisection, elsewhere by trying one after
    the other from the least that can carry the load. Either way one replica fewer would not do.

    Parameters
    ----------
    estimator : Estimator
    arrival_rate_per_s : float
        Of all replicas together.
    objective : ServiceLevelObjective
    min_replicas, max_replicas : int
        Bounds, both allowed.

    Returns
    -------
    Prediction
        For the number found, of the estimator's own kind.

    Raises
    ------
    InvalidInputError
        A rate or a bound is out of its range.
    InfeasibleError
        No number in the bounds meets the SLA; the message says what would.
    """
    if not 0 <= arrival_rate_per_s < math.inf:
        raise InvalidInputError(
            f"arrival_rate_per_s: must be at least 0 and finite, not {arrival_rate_per_s}"
        )
    if not 1 <= min_replicas <= max_replicas:
        raise InvalidInputError(
            "replicas: the least must be at least 1 and at most the most, not "
            f"{min_replicas} to {max_replicas}"
        )
    estimator.check_feasible(objective)
    carried = math.floor(arrival_rate_per_s / estimator.capacity_per_s) + 1
    low = max(min_replicas, carried)
    found = None
    if low <= max_replicas:
        search = _bisect if estimator.monotone else _scan
        found = search(estimator, arrival_rate_per_s, objective, low, max_replicas)
    if found is None:
        raise InfeasibleError(
            f"{max_replicas} replicas do not keep {objective.in_words()} at "
            f"{arrival_rate_per_s:g} requests/s; one can carry {estimator.capacity_per_s:.4g} "
            "at most; allow more replicas, a longer response time or a lower percentile"
        )
    return found


def _bisect(
    estimator: Estimator[P], rate: float, objective: ServiceLevelObjective, low: int, high: int
) -> P | None:
    # The answer mostly lies near the least that carries the load: bracket it from there.
    step = 1
    while low + step < high and not estimator.predict(rate, low + step, objective).meets(objective):
        low, step = low + step + 1, 2 * step
    numbers = range(low, min(low + step, high) + 1)
    found = bisect_left(
        numbers, True, key=lambda n: estimator.predict(rate, n, objective).meets(objective)
    )
    if found == len(numbers):
        return None
    return estimator.predict(rate, numbers[found], objective)


def _scan(
    estimator: Estimator[P], rate: float, objective: ServiceLevelObjective, low: int, high: int
) -> P | None:
    for replicas in range(low, high + 1):
        prediction = estimator.predict(rate, replicas, objective)
        if prediction.meets(objective):
            return prediction
    return None
