"""Sharing a budget of replicas between deployments, by what a replica saves from being late.

When all that the deployments want does not fit, each replica goes where it makes the fewest
requests late: to the deployment whose expected late requests per second, demand·(1 - level(n)),
fall most. One replica alone may save nothing where two would (an overloaded deployment answers
nearly all requests late until its capacity passes its load), so replicas are given out in steps: as
many to one deployment as save the most per replica. That is the greedy algorithm on the concave
envelope of each deployment's curve (Fox, "Discrete optimization via marginal analysis", Management
Science 13(3), 1966, for the concave case). Where all levels are concave in the replicas a step is
one replica, and the result is optimal; elsewhere the late requests are at most those of the best
sharing plus what the last step that did not fit would have saved.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoscaler.reports import ReplicaReport
from policy.errors import InvalidInputError

#: A replica changes hands only for this many times what its deployment loses: each change costs a
#: start, and forecasts tremble.
CHANGE_FACTOR = 1.2


@dataclass(frozen=True)
class Claim:
    """What one deployment asks of the budget.

    Attributes
    ----------
    name : str
        Of the deployment.
    demand_per_s : float
        Requests per second to size for.
    service_level : callable
        Gives the fraction of the requests in time for a number of replicas, 0 included.
    min_replicas : int
        What it gets in any case.
    wanted_replicas : int
        What keeps its SLA; it gets no more.
    held_replicas : int
        What it has now.

    Raises
    ------
    InvalidInputError
        A number is negative, or less is wanted than the minimum.
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
        """Give the late requests per second to expect of `replicas` replicas."""
        return self.demand_per_s * (1 - self.service_level(replicas))


def level_by_replicas(
    demand_per_s: float, sla_rate_per_s: float | None, reports: Iterable[ReplicaReport]
) -> Callable[[int], float]:
    """Give the service level of a deployment as a function of its replicas.

    Parameters
    ----------
    demand_per_s : float
        Requests per second that they share.
    sla_rate_per_s : float or None
        What one takes under the SLA; None where that is not known.
    reports : iterable of ReplicaReport
        The latest of each. Where none has a `LoadLatenessCurve` yet, what full batches carry is in time.
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
        Replicas of all together.

    Returns
    -------
    dict
        The replicas of each claim, by its name: what it wants where all that fits; else at least
        its minimum, at most what it wants, and together no more than the budget.

    Raises
    ------
    InvalidInputError
        The budget does not even cover the minima.
    """
    least = sum(claim.min_replicas for claim in claims)
    if budget < least:
        raise InvalidInputError(
            f"replica_budget: must be at least {least}, the sum of the min_replicas, not {budget}"
        )
    if sum(claim.wanted_replicas for claim in claims) <= budget:
        return {claim.name: claim.wanted_replicas for claim in claims}
    shares = {claim.name: claim.min_replicas for claim in claims}
    left = budget - least
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
    """Replicas for one deployment; the greater is the better one."""

    saved_per_replica: float
    #: What saves nothing goes where the load per replica is largest, and so to who is worst off.
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
    saved = (late_per_s[share] - late_per_s[share + sizes]) / sizes
    best = int(saved.argmax())
    replicas = int(sizes[best])
    return _Step(float(saved[best]), claim.demand_per_s / (share + replicas), replicas)


def _late_curve(claim: Claim) -> NDArray[np.float64]:
    """Late requests per second by the replicas; those of replicas held are dearer to lose."""
    late = np.array([claim.late_per_s(n) for n in range(claim.wanted_replicas + 1)])
    # One replica more never makes it worse, whatever the estimate says.
    late = np.minimum.accumulate(late)
    held = min(claim.held_replicas, claim.wanted_replicas)
    late[:held] += (CHANGE_FACTOR - 1) * (late[:held] - late[held])
    return late
