"""Share a budget of replicas between deployments, by the late requests that a replica prevents.

If the deployments want more replicas than the budget holds, each replica goes where it prevents the
most late requests: where the expected number of late requests per second, demand · (1 - level(n)),
falls most; those refused count as late. A replica that refuses what it cannot answer in time
prevents as many as it can serve, however many more there are. Without such refusals (`late: serve`)
an overloaded deployment answers nearly every request late until its capacity exceeds its load, so
one replica alone may prevent none where two would. So replicas are handed out in steps: as many to
one deployment as prevent the most late requests per replica.

This is the greedy algorithm on the concave envelope of each deployment's curve (for the concave
case see Fox, "Discrete optimization via marginal analysis", Management Science 13(3), 1966). If the
service levels are concave in the replicas, each step is one replica and the result is optimal.
Otherwise the late requests exceed the optimum by at most what the last step that did not fit would
have prevented.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoscaler.reports import ReplicaReport
from policy.errors import InvalidInputError

#: A replica moves to another deployment only for a gain of this many times the loss: each move
#: costs a start, and forecasts fluctuate.
MOVE_GAIN_FACTOR = 1.2


@dataclass(frozen=True)
class Claim:
    """A deployment's claim on the budget.

    Attributes
    ----------
    name : str
        Name of the deployment.
    demand_per_s : float
        Requests per second to size for.
    service_level : callable
        Maps a number of replicas, 0 included, to the fraction of requests answered in time.
    min_replicas : int
        Replicas that it gets in any case.
    wanted_replicas : int
        Replicas that keep its SLA; it never gets more.
    held_replicas : int
        Replicas that it has now.

    Raises
    ------
    InvalidInputError
        A number is negative, or `wanted_replicas` is below `min_replicas`.
    """

    name: str
    demand_per_s: float
    service_level: Callable[[int], float]
    min_replicas: int
    wanted_replicas: int
    held_replicas: int = 0

    def __post_init__(self) -> None:
        if not self.demand_per_s >= 0:
            raise InvalidInputError(
                f"{self.name}: demand_per_s must be at least 0, not {self.demand_per_s}"
            )
        if not 0 <= self.min_replicas <= self.wanted_replicas:
            raise InvalidInputError(
                f"{self.name}: wanted_replicas must be at least the minimum of "
                f"{self.min_replicas}, not {self.wanted_replicas}"
            )

    def late_per_s(self, replicas: int) -> float:
        """Return the expected late requests per second with `replicas` replicas."""
        return self.demand_per_s * (1 - self.service_level(replicas))


def service_level_by_replicas(
    demand_per_s: float, sla_rate_per_s: float | None, reports: Iterable[ReplicaReport]
) -> Callable[[int], float]:
    """Return a deployment's service level as a function of its number of replicas.

    Parameters
    ----------
    demand_per_s : float
        Requests per second to all its replicas together.
    sla_rate_per_s : float or None
        The highest rate at which one replica keeps the SLA; None if it is not known.
    reports : iterable of ReplicaReport
        The latest report of each replica. If none has a `LoadLatenessCurve` yet, everything that
        full batches can carry counts as in time.

    Returns
    -------
    callable
        Maps a number of replicas, at least 0, to a fraction from 0 to 1.
    """
    newest = max(reports, key=lambda report: (report.curve is not None, report.time_s))
    if newest.curve is None:
        capacity_per_s = 1e3 * newest.full_batch_size / newest.full_batch_ms

        def in_time(replicas: int) -> float:
            return min(1.0, replicas * capacity_per_s / max(demand_per_s, 1e-9))

        return in_time
    curve = replace(newest.curve, sla_rate_per_s=sla_rate_per_s or newest.sla_rate_per_s)

    def service_level(replicas: int) -> float:
        return curve.service_level(demand_per_s / replicas) if replicas else 0.0

    return service_level


def share_budget(claims: Sequence[Claim], budget: int) -> dict[str, int]:
    """Share `budget` replicas between `claims`.

    Parameters
    ----------
    claims : sequence of Claim
    budget : int
        Replicas of all deployments together.

    Returns
    -------
    dict
        The number of replicas by the name of the claim: all that is wanted, if that fits. Otherwise
        at least the minimum and at most what is wanted, together no more than the budget.

    Raises
    ------
    InvalidInputError
        The budget does not cover the minima.
    """
    total_min = sum(claim.min_replicas for claim in claims)
    if budget < total_min:
        raise InvalidInputError(
            f"replica_budget: must be at least {total_min}, the sum of the min_replicas, "
            f"not {budget}"
        )
    if sum(claim.wanted_replicas for claim in claims) <= budget:
        return {claim.name: claim.wanted_replicas for claim in claims}
    shares = {claim.name: claim.min_replicas for claim in claims}
    left = budget - total_min
    curves = {claim.name: _late_curve(claim) for claim in claims}
    steps = {claim.name: _best_step(claim, curves[claim.name], shares, left) for claim in claims}
    while left:
        name = max(steps, key=lambda name: steps[name])
        shares[name] += steps[name].replicas
        left -= steps[name].replicas
        for claim in claims:
            if claim.name == name or steps[claim.name].replicas > left:
                steps[claim.name] = _best_step(claim, curves[claim.name], shares, left)
    return shares


class _Step(NamedTuple):
    """Replicas to hand to one deployment at once; steps compare by their fields, in order."""

    prevented_per_replica: float
    #: Steps that prevent nothing go where the load per replica is highest.
    load_per_replica: float
    replicas: int


_NO_STEP = _Step(-1.0, 0.0, 0)


def _best_step(
    claim: Claim, late_per_s: NDArray[np.float64], shares: dict[str, int], left: int
) -> _Step:
    share = shares[claim.name]
    sizes = np.arange(1, min(left, claim.wanted_replicas - share) + 1)
    if not len(sizes):
        return _NO_STEP
    prevented = (late_per_s[share] - late_per_s[share + sizes]) / sizes
    best = int(prevented.argmax())
    replicas = int(sizes[best])
    return _Step(float(prevented[best]), claim.demand_per_s / (share + replicas), replicas)


def _late_curve(claim: Claim) -> NDArray[np.float64]:
    """Tabulate late requests per second by replicas; losing a held replica is weighted up."""
    late = np.array([claim.late_per_s(n) for n in range(claim.wanted_replicas + 1)])
    # An estimate may say that one more replica hurts; it never does.
    late = np.minimum.accumulate(late)
    held = min(claim.held_replicas, claim.wanted_replicas)
    late[:held] += (MOVE_GAIN_FACTOR - 1) * (late[:held] - late[held])
    return late
