"""The objectives of a batching policy: a weighted cost, or a service level (the SLA)."""

import math
from dataclasses import dataclass, replace

from policy.errors import InvalidInputError


@dataclass(frozen=True)
class Weights:
    """Least ``latency_weight`` x mean response (ms) + ``energy_weight`` x mean power (W).

    Attributes
    ----------
    latency_weight : float
        Above 0: without it, waiting for ever would be best.
    energy_weight : float
        At least 0; 0 where the profile knows no energy.
    max_wait_ms : float or None
        A free device also starts when the oldest request has waited this long. It is laid over
        the optimal policy, which itself knows queue lengths alone. None: never.

    Raises
    ------
    InvalidInputError
        A weight is negative or not finite, or the latency weight is 0.
    """

    latency_weight: float = 1.0
    energy_weight: float = 0.0
    max_wait_ms: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency_weight) and self.latency_weight > 0):
            raise InvalidInputError(f"latency weight: must be above 0, not {self.latency_weight:g}")
        if not (math.isfinite(self.energy_weight) and self.energy_weight >= 0):
            raise InvalidInputError(
                f"energy weight: must be at least 0, not {self.energy_weight:g}"
            )
        if self.max_wait_ms is not None and not self.max_wait_ms >= 0:
            raise InvalidInputError(f"max wait: must be at least 0 ms, not {self.max_wait_ms:g}")


#: What `ServiceLevelObjective.after` leaves where the delays take the whole response time: too
#: little for any batch, so that no arrival rate meets the SLA.
_MIN_RESPONSE_TIME_MS = 1e-3


@dataclass(frozen=True)
class ServiceLevelObjective:
    """The SLA: a percentile of the response time must be at most a limit.

    As the objective of a batching policy it asks for the least power that keeps it.

    Attributes
    ----------
    response_time_ms : float
        The limit, above 0. It is the client's where nothing else is said.
    percentile : float
        Percent of the requests that must meet it, between 0 and 100.

    Raises
    ------
    InvalidInputError
        One of the two is out of its range.
    """

    response_time_ms: float
    percentile: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.response_time_ms) and self.response_time_ms > 0):
            raise InvalidInputError(
                f"response time: must be above 0 ms, not {self.response_time_ms:g}"
            )
        if not 0 < self.percentile < 100:
            raise InvalidInputError(
                f"percentile: must be between 0 and 100, not {self.percentile:g}"
            )

    @property
    def late_share_allowed(self) -> float:
        """Fraction of the requests that may be late."""
        return 1 - self.percentile / 100

    def is_late(self, response_time_ms: float) -> bool:
        """Return whether a response time exceeds the limit; one that equals it does not."""
        return response_time_ms > self.response_time_ms

    def after(self, delays_ms: float) -> "ServiceLevelObjective":
        """Return what delays outside the replica leave of the SLA.

        Where they leave nothing, the result is an SLA that no batch can meet.
        """
        left_ms = max(_MIN_RESPONSE_TIME_MS, self.response_time_ms - delays_ms)
        return replace(self, response_time_ms=left_ms)

    def in_words(self) -> str:
        """Return ``99% of requests within 100 ms``."""
        return f"{self.percentile:g}% of requests within {self.response_time_ms:g} ms"


Objective = Weights | ServiceLevelObjective
