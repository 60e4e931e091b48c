"""The objectives of a batching policy: a weighted cost, or a service level objective (the SLA)."""

import re
from dataclasses import dataclass, replace

from policy.errors import InvalidInputError
from policy.values import check_above_0, check_at_least


@dataclass(frozen=True)
class Weights:
    """Minimize ``latency_weight`` x mean response time (ms) + ``energy_weight`` x mean power (W).

    Attributes
    ----------
    latency_weight : float
        Above 0: with 0 it would be best never to start a batch.
    energy_weight : float
        At least 0; it must be 0 if the profile has no energy.
    """

    latency_weight: float = 1.0
    energy_weight: float = 0.0

    def __post_init__(self) -> None:
        check_above_0("latency weight", self.latency_weight)
        check_at_least(0, "energy weight", self.energy_weight)


def fault_of_percentile(percentile: float) -> str | None:
    """Return what is wrong with a percentile that somebody wrote as a share; None if it is fine."""
    if percentile <= 1:
        return f"is in percent; write {100 * percentile:g} for {100 * percentile:g}%"
    return None


#: The least response time that `ServiceLevelObjective.after` leaves: too short for any batch, so
#: that no arrival rate meets the SLA.
_MIN_RESPONSE_TIME_MS = 1e-3
# 99.9 / 100 is more than 0.999, and model levels come from sums; no count of requests is so large
# that it tells shares closer than this apart.
_LEVEL_ROUNDING = 1e-10


@dataclass(frozen=True)
class ServiceLevelObjective:
    """The SLA: a percentile of the response time must not exceed a limit.

    As the objective of a batching policy, it asks for the least power that keeps the SLA.

    Attributes
    ----------
    response_time_ms : float
        The limit, above 0. Unless stated otherwise, the response time is the client's.
    percentile : float
        Percentage of requests that must meet the limit, between 0 and 100 exclusive.
    """

    response_time_ms: float
    percentile: float

    def __post_init__(self) -> None:
        check_above_0("response time in ms", self.response_time_ms)
        if not 0 < self.percentile < 100:
            raise InvalidInputError(
                f"percentile: must be between 0 and 100, not {self.percentile:g}"
            )

    @classmethod
    def parse(cls, text: str) -> "ServiceLevelObjective":
        """Return the SLA in a text: ``50ms@95``, or ``p95=50ms``; the unit may be ms or s."""
        number = r"[0-9]+(?:\.[0-9]+)?"
        match = re.fullmatch(rf"({number})(ms|s)@({number})%?", text)
        time, unit, percentile = match.groups() if match else ("", "", "")
        if match is None and (match := re.fullmatch(rf"p({number})=({number})(ms|s)", text)):
            percentile, time, unit = match.groups()
        if match is None:
            raise InvalidInputError(f"must be like 50ms@95 or p95=50ms, not {text!r:.100}")
        if fault := fault_of_percentile(float(percentile)):
            raise InvalidInputError(f"percentile: {fault}")
        return cls(float(time) * (1e3 if unit == "s" else 1), float(percentile))

    @property
    def late_share_allowed(self) -> float:
        """Fraction of requests that may be late, between 0 and 1."""
        return 1 - self.percentile / 100

    @property
    def least_level(self) -> float:
        """Least service level that meets the SLA, a fraction of requests, less what is rounding.

        Compare every share of requests in time with this: 999 of 1000 meet 99.9%.
        """
        return self.percentile / 100 - _LEVEL_ROUNDING

    def is_late(self, response_time_ms: float) -> bool:
        """Return whether a response time exceeds the limit; one that equals it does not."""
        return response_time_ms > self.response_time_ms

    def after(self, delays_ms: float) -> "ServiceLevelObjective":
        """Return the SLA that remains after delays outside the replica.

        If the delays take the whole response time, no batch can meet the result.
        """
        left_ms = max(_MIN_RESPONSE_TIME_MS, self.response_time_ms - delays_ms)
        return replace(self, response_time_ms=left_ms)

    def times(self, factor: float) -> "ServiceLevelObjective":
        """Return the SLA with a multiple of the response time."""
        return replace(self, response_time_ms=factor * self.response_time_ms)

    def in_words(self) -> str:
        """Return the SLA in words, such as ``99% of requests within 100 ms``."""
        return f"{self.percentile:g}% of requests within {self.response_time_ms:g} ms"


Objective = Weights | ServiceLevelObjective
