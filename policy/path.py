"""What a request costs the balancer on its way to a replica and back.

In a profile's file::

    "path": {"balancer_ms": 0.045}

It holds for all arrival rates. At one of them it gives the balancer's load, which
`policy.response_time.way` turns into time on the way.
"""

import math
from dataclasses import dataclass
from typing import Any

from policy.errors import InfeasibleError, InvalidInputError
from policy.profile_parts import check_keys, check_number


@dataclass(frozen=True)
class PathCosts:
    """What the balancer spends on requests, and how many of them are other replicas'.

    Attributes
    ----------
    balancer_ms : float
        Time of the balancer per request, there and back.
    replicas : float
        Requests that pass the balancer for each request to this replica: the number of replicas
        behind it if it divides the load evenly.

    Raises
    ------
    InvalidInputError
        The time is negative or not finite, or the number not above 0 and finite.
    """

    balancer_ms: float
    replicas: float = 1.0

    def __post_init__(self) -> None:
        for name, least in (("balancer_ms", "at least 0"), ("replicas", "above 0")):
            value = getattr(self, name)
            check_number("path", name, value)
            in_range = value > 0 or (value == 0 and name == "balancer_ms")
            if not (math.isfinite(value) and in_range):
                raise InvalidInputError(
                    f"path: {name} must be a finite number of {least}, not {value:g}"
                )

    @property
    def capacity_per_s(self) -> float:
        """The rate per replica at which the balancer is always at work; infinity if it is free."""
        ms_per_request = self.balancer_ms * self.replicas
        return 1e3 / ms_per_request if ms_per_request else math.inf

    def utilization(self, arrival_rate_per_s: float) -> float:
        """Return the fraction of the time for which the balancer is at work.

        Parameters
        ----------
        arrival_rate_per_s : float
            Requests to each replica.

        Raises
        ------
        InfeasibleError
            The balancer cannot keep up.
        """
        if arrival_rate_per_s >= self.capacity_per_s:
            raise InfeasibleError(
                f"arrival rate: {arrival_rate_per_s:g} per second is not below the "
                f"{self.capacity_per_s:g} per second that the balancer can pass to each replica"
            )
        return 1e-3 * self.balancer_ms * self.replicas * arrival_rate_per_s

    @classmethod
    def from_utilization(
        cls, balancer_ms: float, utilization: float, arrival_rate_per_s: float
    ) -> "PathCosts":
        """Return the costs with which a balancer is at work for this fraction of the time.

        Parameters
        ----------
        balancer_ms : float
            Time of the balancer per request, above 0.
        utilization : float
            Fraction of the time for which it is at work.
        arrival_rate_per_s : float
            Requests to each replica, above 0.
        """
        return cls(balancer_ms, 1e3 * utilization / (balancer_ms * arrival_rate_per_s))

    @classmethod
    def from_dict(cls, content: object) -> "PathCosts":
        """Make the costs from the content of a profile file.

        Raises
        ------
        InvalidInputError
            The content is not an object with `balancer_ms` and nothing else but `replicas`, or a
            value is out of range.
        """
        return cls(**check_keys("path", content, ["balancer_ms"], optional=["replicas"]))

    def to_dict(self) -> dict[str, Any]:
        """Return the content for a profile file."""
        replicas = {} if self.replicas == 1 else {"replicas": self.replicas}
        return {"balancer_ms": self.balancer_ms, **replicas}
