"""Replicas that several deployments share, of one application or of many.

Serve's controller asks each deployment's policy in turn. Each leaves its claim here and is told its
share of the budget; a replica that another deployment still holds is not given away a second time.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from autoscaler.decision import Decision
from autoscaler.sizing.budget import Claim, share_budget
from policy.errors import InvalidInputError

#: A deployment that has not claimed for this long is gone.
CLAIM_LASTS_S = 30.0


@dataclass(frozen=True)
class BudgetClaim:
    """What one deployment asks of a shared budget.

    Attributes
    ----------
    name : str
        Of the deployment, with its application.
    budget : int
        The most replicas that all deployments may have together. If they name different budgets,
        the least counts; the sum of their minima is granted in any case.
    decision : Decision
        What its autoscaler wants.
    service_level : callable
        Maps a number of replicas to the share of requests answered in time.
    min_replicas : int
        Replicas that it gets in any case.
    held_replicas : int
        Replicas ordered so far.
    dry_run : bool
        Whether its replicas stay as they are.

    Raises
    ------
    InvalidInputError
        The budget is not a whole number of at least 1.
    """

    name: str
    budget: int
    decision: Decision
    service_level: Callable[[int], float]
    min_replicas: int
    held_replicas: int
    dry_run: bool = False

    def __post_init__(self) -> None:
        check_budget(self.budget)

    def claim(self, *, keep_unknown: bool) -> Claim:
        """Return the claim; one whose load is unknown keeps its replicas, if `keep_unknown`."""
        demand_per_s = self.decision.demand_per_s
        least = self.min_replicas
        if self.dry_run or (demand_per_s is None and keep_unknown):
            least = max(least, self.held_replicas)
        wanted = 0 if self.dry_run else self.decision.replicas
        return Claim(
            name=self.name,
            demand_per_s=demand_per_s or 0.0,
            service_level=self.service_level,
            min_replicas=least,
            wanted_replicas=max(least, wanted),
            held_replicas=self.held_replicas,
        )


def check_budget(budget: object) -> None:
    """Raise an error if `budget` is not a number of replicas.

    Raises
    ------
    InvalidInputError
        It is not a whole number of at least 1.
    """
    if type(budget) is not int or budget < 1:
        raise InvalidInputError(
            f"replica_budget: must be a whole number of at least 1, not {budget!r}"
        )


class SharedBudget:
    """The claims of all deployments that share a budget."""

    def __init__(self) -> None:
        self._claims: dict[str, tuple[float, BudgetClaim]] = {}

    def decide(self, now_s: float, own: BudgetClaim) -> Decision:
        """Record a claim and return its decision, reduced to the deployment's share.

        Parameters
        ----------
        now_s : float
            On one clock for all claims.
        own : BudgetClaim
        """
        self._claims = {
            name: entry
            for name, entry in self._claims.items()
            if abs(now_s - entry[0]) < CLAIM_LASTS_S
        }
        self._claims[own.name] = now_s, own
        shares = _Shares([claim for _, claim in self._claims.values()])
        wanted = own.decision.replicas
        # What another still holds is not free yet.
        others = sum(c.held_replicas for _, c in self._claims.values() if c.name != own.name)
        share = min(shares.by_name[own.name], max(shares.least[own.name], shares.budget - others))
        if own.dry_run or share == wanted:
            return own.decision
        return replace(
            own.decision,
            replicas=share,
            predicted_service_level=own.service_level(share),
            reason=f"{share} of {wanted} wanted, within a budget of {shares.budget}; "
            f"{own.decision.reason}",
        )


@dataclass(frozen=True)
class _Shares:
    """The shares of a number of claims."""

    given: list[BudgetClaim]

    @cached_property
    def _claims(self) -> list[Claim]:
        kept = [claim.claim(keep_unknown=True) for claim in self.given]
        if _total_min(kept) <= min(claim.budget for claim in self.given):
            return kept
        return [claim.claim(keep_unknown=False) for claim in self.given]

    @cached_property
    def budget(self) -> int:
        return max(min(claim.budget for claim in self.given), _total_min(self._claims))

    @cached_property
    def least(self) -> dict[str, int]:
        return {claim.name: claim.min_replicas for claim in self._claims}

    @cached_property
    def by_name(self) -> dict[str, int]:
        return share_budget(self._claims, self.budget)


def _total_min(claims: list[Claim]) -> int:
    return sum(claim.min_replicas for claim in claims)


_budget = SharedBudget()


def decide_within_budget(now_s: float, own: BudgetClaim) -> Decision:
    """Ask the budget of this process: all policies run in Serve's controller.

    A function, because Ray pickles the policy with the objects that it refers to.
    """
    return _budget.decide(now_s, own)
