"""Replicas that several deployments share, by the late requests that a replica prevents.

Serve's controller asks each deployment's policy in turn. Each leaves its claim here and gets its
share of the budget; a replica that another deployment still holds is not given away a second time.

If the deployments want more replicas than the budget holds, each replica goes where it prevents the
most late requests: where the expected number of late requests per second, demand · (1 - level(n)),
falls most. Without refusals by time (`late: serve`) one replica alone may prevent none where two
would. So replicas are handed out in steps: as many to one deployment as prevent the most late
requests per replica.

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

from autoscaler.decision import Decision
from autoscaler.reports import ReplicaReport
from policy.errors import InvalidInputError

#: A replica moves to another deployment only for a gain of this many times the loss: each move
#: costs a start, and forecasts fluctuate.
MOVE_GAIN_FACTOR = 1.2
#: A deployment that has not claimed for this long is gone.
CLAIM_LASTS_S = 30.0


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
    keeps_held : bool
        Whether it keeps these, if the budget allows: its load is unknown.

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
    keeps_held: bool = False

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


def check_budget(budget: object) -> None:
    """Raise `InvalidInputError` unless `budget` is a whole number of at least 1."""
    if type(budget) is not int or budget < 1:
        raise InvalidInputError(
            f"replica_budget: must be a whole number of at least 1, not {budget!r}"
        )


class SharedBudget:
    """The claims of all deployments that share a budget."""

    def __init__(self) -> None:
        #: By name: when it was made, the budget that it names, and the claim.
        self._claims: dict[str, tuple[float, int, Claim]] = {}

    def decide(self, now_s: float, own: Claim, budget: int, decision: Decision) -> Decision:
        """Record a claim and return its decision, reduced to the deployment's share.

        Parameters
        ----------
        now_s : float
            On one clock for all claims.
        own : Claim
        budget : int
            The most replicas that all deployments may have together. If they name different
            budgets, the least counts; the sum of their minima is granted in any case.
        decision : Decision
            Of the deployment's autoscaler.
        """
        self._claims[own.name] = now_s, budget, own
        for name, (claimed_s, *_) in list(self._claims.items()):
            if abs(now_s - claimed_s) >= CLAIM_LASTS_S:
                del self._claims[name]
        claims = [claim for *_, claim in self._claims.values()]
        least = min(named for _, named, _ in self._claims.values())
        kept = [_keeping(claim) for claim in claims]
        if sum(claim.min_replicas for claim in kept) <= least:
            claims = kept
        total = max(least, sum(claim.min_replicas for claim in claims))
        # What another still holds is not free yet.
        others = sum(claim.held_replicas for claim in claims if claim.name != own.name)
        share = share_budget(claims, total)[own.name]
        share = min(share, max(own.min_replicas, total - others))
        if share == decision.replicas:
            return decision
        return replace(
            decision,
            replicas=share,
            predicted_service_level=own.service_level(share),
            reason=f"{share} of {decision.replicas} wanted, within a budget of {total}; "
            f"{decision.reason}",
        )


def _keeping(claim: Claim) -> Claim:
    if not claim.keeps_held:
        return claim
    kept = max(claim.min_replicas, claim.held_replicas)
    wanted = max(kept, claim.wanted_replicas)
    return replace(claim, min_replicas=kept, wanted_replicas=wanted)


_budget = SharedBudget()


def decide_within_budget(now_s: float, own: Claim, budget: int, decision: Decision) -> Decision:
    """Ask the budget of this process: all policies run in Serve's controller.

    A function, because Ray pickles the policy with the objects that it refers to.
    """
    return _budget.decide(now_s, own, budget, decision)
