"""Response-time estimators: what service level a number of replicas reaches at a given load.

`autoscaler.sizing.search` finds the least number of replicas with any `Estimator`.
`FullBatchEstimator`, in this module, has a closed form and takes microseconds.
`autoscaler.sizing.batch_queue_estimator` models the batching policy and takes milliseconds.
"""

import math
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from autoscaler.sizing.rand import busy_probability, retried_response_time_cdf
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.try_delays import TryDelays


@dataclass(frozen=True)
class Prediction:
    """The predicted performance of a number of replicas at a given load.

    Attributes
    ----------
    replicas : int
    service_level : float
        Fraction of all requests that are answered within the SLA's response time.
    percentile_ms : float
        Response time, in ms, at the SLA's percentile of all requests. Infinite if fewer requests
        than that are ever answered.
    """

    replicas: int
    service_level: float
    percentile_ms: float

    def meets(self, objective: ServiceLevelObjective) -> bool:
        """Return whether the predicted service level is at least the SLA's."""
        return self.service_level >= objective.least_level


P_co = TypeVar("P_co", bound=Prediction, covariant=True)


class Estimator(Protocol[P_co]):
    """A model of the response time of a fleet."""

    @property
    def capacity_per_s(self) -> float:
        """The arrival rate that saturates one replica; it must stay below this to be stable."""

    @property
    def monotone(self) -> bool:
        """Whether a fleet that meets the SLA still meets it with more replicas."""

    def predict(
        self, arrival_rate_per_s: float, replicas: int, objective: ServiceLevelObjective
    ) -> P_co:
        """Predict the performance of `replicas` replicas that share `arrival_rate_per_s`."""

    def check_feasible(self, objective: ServiceLevelObjective) -> None:
        """Raise `InfeasibleError` if no number of replicas can meet the SLA."""


@dataclass(frozen=True)
class FullBatchEstimator:
    """A replica modeled as one server that works in full batches and refuses while it is busy.

    The service rate is that of full batches, and every request takes the time of a full batch. So
    Theorem 2 of RAND has a closed form: if m tries fit into the response time, the service level is
    1 - P_busy^m. It is monotone in the replicas, the arrival rate and the response time.

    Attributes
    ----------
    service_rate_per_s : float
        Requests per second with full batches.
    execution_time_ms : float
        Time of a full batch, in ms.
    delays : TryDelays

    Raises
    ------
    InvalidInputError
        The rate or the time is not positive and finite.
    """

    service_rate_per_s: float
    execution_time_ms: float
    delays: TryDelays = field(default_factory=TryDelays)

    monotone = True

    def __post_init__(self) -> None:
        for name in ("service_rate_per_s", "execution_time_ms"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidInputError(
                    f"{name}: must be above 0 and finite, not {getattr(self, name)}"
                )

    @property
    def capacity_per_s(self) -> float:
        """The arrival rate that saturates one replica."""
        return self.service_rate_per_s

    def predict(
        self, arrival_rate_per_s: float, replicas: int, objective: ServiceLevelObjective
    ) -> Prediction:
        """Predict the performance of a fleet by Theorem 2.

        Parameters
        ----------
        arrival_rate_per_s : float
            Requests per second to all replicas together.
        replicas : int
        objective : ServiceLevelObjective

        Raises
        ------
        InvalidInputError
            The arrival rate is negative or not finite, or there is no replica.
        """
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
