"""Response-time estimators: what service level a number of replicas reaches at a given load.

`least_replicas` finds the least number of replicas with any `Estimator`.
`FullBatchEstimator`, in this module, has a closed form and takes microseconds.
`autoscaler.sizing.service_estimator` models the batching policy and takes seconds.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from autoscaler.sizing.rand import busy_probability, check_load, response_time_cdf
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.try_delays import TryDelays


@dataclass(frozen=True)
class Prediction:
    """The predicted performance of a number of replicas at a given load.

    `service_level` is the fraction of all requests that are answered within the SLA's response
    time, `percentile_ms` the response time at the SLA's percentile of all requests: infinite if
    fewer than that are ever answered.
    """

    replicas: int
    service_level: float
    percentile_ms: float

    def meets(self, objective: ServiceLevelObjective) -> bool:
        """Return whether the predicted service level is at least the SLA's."""
        return self.service_level >= objective.least_level


class Estimator(Protocol):
    """A model of the response time of a fleet."""

    @property
    def capacity_per_s(self) -> float:
        """The arrival rate that saturates one replica; it must stay below this to be stable."""

    @property
    def monotone(self) -> bool:
        """Whether a fleet that meets the SLA still meets it with more replicas."""

    def predict(
        self, arrival_rate_per_s: float, replicas: int, objective: ServiceLevelObjective
    ) -> Prediction:
        """Predict the performance of `replicas` replicas that share `arrival_rate_per_s`."""

    def check_feasible(self, objective: ServiceLevelObjective) -> None:
        """Raise `InfeasibleError` if no number of replicas can meet the SLA."""

    def least_to_consider(self, arrival_rate_per_s: float, objective: ServiceLevelObjective) -> int:
        """Return a number below which replicas do not meet the SLA, at least 1."""


@dataclass(frozen=True)
class FullBatchEstimator:
    """A replica modeled as one server that works in full batches and refuses while it is busy.

    The capacity is the service rate of full batches, and every request takes the time of one. So
    Theorem 2 of RAND has a closed form: if m tries fit into the response time, the service level is
    1 - P_busy^m. It is monotone in the replicas, the arrival rate and the response time.
    """

    capacity_per_s: float
    execution_time_ms: float
    delays: TryDelays = field(default_factory=TryDelays)

    monotone = True

    def least_to_consider(self, arrival_rate_per_s: float, objective: ServiceLevelObjective) -> int:
        """Return the fewest replicas that carry the load."""
        return math.floor(arrival_rate_per_s / self.capacity_per_s) + 1

    def predict(
        self, arrival_rate_per_s: float, replicas: int, objective: ServiceLevelObjective
    ) -> Prediction:
        """Predict the performance of a fleet that shares the arrival rate, by Theorem 2."""
        busy = busy_probability(arrival_rate_per_s, replicas, self.capacity_per_s)
        level = response_time_cdf(
            objective.response_time_ms, busy, self.execution_time_ms, self.delays
        )
        return Prediction(replicas, float(level), self._percentile_ms(busy, objective))

    def check_feasible(self, objective: ServiceLevelObjective) -> None:
        """Raise `InfeasibleError` if even an idle replica answers too late."""
        min_ms = self.delays.request_delay_ms + self.execution_time_ms
        if objective.response_time_ms < min_ms:
            raise InfeasibleError(
                f"no number of replicas answers {objective.in_words()}: a full batch takes "
                f"{self.execution_time_ms:.4g} ms and the way there "
                f"{self.delays.request_delay_ms:.4g} ms; allow {min_ms:.4g} ms or more, or "
                "lower the maximum batch size"
            )

    def _percentile_ms(self, busy: float, objective: ServiceLevelObjective) -> float:
        if busy >= 1:
            return math.inf
        first_try_ms = self.delays.request_delay_ms + self.execution_time_ms
        if busy <= 1 - objective.percentile / 100:
            return first_try_ms
        retries = math.ceil(math.log1p(-objective.percentile / 100) / math.log(busy) - 1 - 1e-9)
        if self.delays.retries is not None and retries > self.delays.retries:
            return math.inf
        return first_try_ms + retries * self.delays.try_ms


def least_replicas(
    estimator: Estimator,
    arrival_rate_per_s: float,
    objective: ServiceLevelObjective,
    max_replicas: int = 1000,
) -> Prediction:
    """Find the least number of replicas whose predicted service level meets the SLA.

    The search bisects if the estimator is monotone. Otherwise it tries one number after the other,
    from the least that can carry the load. Either way, one replica fewer would not meet the SLA.
    `InfeasibleError`: no number up to `max_replicas` does; the message says what would help.
    """
    check_load(arrival_rate_per_s, max_replicas)
    estimator.check_feasible(objective)
    low = estimator.least_to_consider(arrival_rate_per_s, objective)
    found = None
    if estimator.monotone and low <= max_replicas:
        found = _bisect(estimator, arrival_rate_per_s, objective, low, max_replicas)
    elif not estimator.monotone:
        numbers = range(low, max_replicas + 1)
        each = (estimator.predict(arrival_rate_per_s, number, objective) for number in numbers)
        found = next((one for one in each if one.meets(objective)), None)
    if found is None:
        raise InfeasibleError(
            f"{max_replicas} replicas do not keep {objective.in_words()} at "
            f"{arrival_rate_per_s:g} requests/s; one can carry {estimator.capacity_per_s:.4g} "
            "at most; allow more replicas, a longer response time or a lower percentile"
        )
    return found


def _bisect(
    estimator: Estimator, rate: float, objective: ServiceLevelObjective, low: int, high: int
) -> Prediction | None:
    @cache  # a prediction may take seconds
    def predict(replicas: int) -> Prediction:
        return estimator.predict(rate, replicas, objective)

    # The answer is usually close to `low`, so widen the bracket from there.
    step = 1
    while low + step < high and not predict(low + step).meets(objective):
        low, step = low + step + 1, 2 * step
    numbers = range(low, min(low + step, high) + 1)
    found = bisect_left(numbers, True, key=lambda n: predict(n).meets(objective))
    return None if found == len(numbers) else predict(numbers[found])
