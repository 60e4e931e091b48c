"""Replicas that several deployments share, in proportion to what each wants.

Serve's controller asks each deployment's policy in turn. Each leaves its claim here and gets its
share of the budget; a replica that another deployment still holds is not given away a second time.

If the deployments want more than the budget holds, replicas are handed out one by one, each to the
deployment that has the smallest part of what it wants: the method of the highest averages, by which
parliaments share out seats (Balinski and Young, Fair Representation, 1982).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoscaler.decision import Decision
from policy.errors import InvalidInputError

#: A held replica counts as wanted this many times as much: each move costs a start, and forecasts
#: fluctuate.
HELD_FACTOR = 1.2
#: A deployment that has not claimed for this long is gone.
CLAIM_LASTS_S = 30.0


@dataclass(frozen=True)
class Claim:
    """A deployment's claim on the budget: it gets from `min_replicas` to `wanted_replicas`.

    With `keeps_held` it keeps what it holds, if the budget allows: its load is unknown.
    """

    name: str
    min_replicas: int
    wanted_replicas: int
    held_replicas: int = 0
    keeps_held: bool = False

    def priority(self, share: int) -> float:
        """Return its priority for one more replica than `share`; below 0 if it wants none."""
        if share >= self.wanted_replicas:
            return -1.0
        factor = HELD_FACTOR if share < self.held_replicas else 1.0
        return factor * self.wanted_replicas / (share + 1)


def share_budget(claims: Sequence[Claim], budget: int) -> dict[str, int]:
    """Share `budget` replicas between claims; return the number by the name of the claim.

    It is all that is wanted, if that fits; otherwise at least the minimum and at most what is
    wanted, together the budget, which covers the minima.
    """
    shares = {claim.name: claim.min_replicas for claim in claims}
    if sum(claim.wanted_replicas for claim in claims) <= budget:
        return {claim.name: claim.wanted_replicas for claim in claims}
    for _ in range(budget - sum(shares.values())):
        first = max(claims, key=lambda claim: (claim.priority(shares[claim.name]), claim.name))
        shares[first.name] += 1
    return shares


def check_budget(budget: object) -> None:
    """Raise `InvalidInputError` unless `budget` is a whole number of at least 1."""
    if type(budget) is not int or budget < 1:
        raise InvalidInputError(
            f"replica_budget: must be a whole number of at least 1, not {budget!r}"
        )


class SharedBudget:
    def __init__(self) -> None:
        #: By name: when it was made, the budget that it names, and the claim.
        self._claims: dict[str, tuple[float, int, Claim]] = {}

    def decide(self, now_s: float, own: Claim, budget: int, decision: Decision) -> Decision:
        """Record a claim and return its decision, reduced to the deployment's share.

        If deployments name different budgets, the least counts; the sum of their minima is granted
        in any case.
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
            predicted_service_level=None,
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
    """Query the budget of this process: all policies run in Serve's controller.

    A function, because Ray pickles the policy with the objects that it refers to.
    """
    return _budget.decide(now_s, own, budget, decision)
