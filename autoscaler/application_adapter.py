"""Where the autoscaler meets an application of several deployments, and a budget they share.

Ray asks a policy of the application instead of those of its deployments. In the config file::

    applications:
      - name: pipeline
        autoscaling_policy:
          policy_function: autoscaler.application_adapter:SojournBudgetPolicy
          policy_kwargs: {replica_budget: 8}

Each deployment's autoscaler says how many replicas it wants; where all that is more than the
budget, `autoscaler.sizing.budget` shares it. To change the budget replaces all replicas: to Ray,
`policy_kwargs` are a part of the application's code version.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ray.serve.config import AutoscalingContext

from autoscaler.decision import Decision
from autoscaler.ray_adapter import DECISION_PERIOD_S, considered, ordered
from autoscaler.scaled_deployments import ScaledDeployment
from autoscaler.sizing.budget import Claim, service_level_by_replicas, share_budget
from policy.errors import InvalidInputError

logger = logging.getLogger("ray.serve")


class SojournBudgetPolicy:
    """A policy for a whole application, with as many replicas as `replica_budget` at most.

    Parameters
    ----------
    replica_budget : int
        Replicas of all its deployments together. The sum of their `min_replicas` comes first where
        that is more.

    Raises
    ------
    InvalidInputError
        The budget is no whole number above 0.
    """

    def __init__(self, replica_budget: int) -> None:
        if type(replica_budget) is not int or replica_budget < 1:
            raise InvalidInputError(
                f"replica_budget: must be a whole number of at least 1, not {replica_budget!r}"
            )
        self._budget = replica_budget
        self._decided_s = 0.0
        self._replicas: dict[Any, int] = {}

    def __call__(
        self, contexts: Mapping[Any, AutoscalingContext]
    ) -> tuple[dict[Any, int], dict[Any, dict[str, Any]]]:
        """Give the number of replicas of each deployment."""
        now_s = max((ctx.current_time for ctx in contexts.values()), default=0.0)
        soon = 0 <= now_s - self._decided_s < DECISION_PERIOD_S
        if not soon or self._replicas.keys() != contexts.keys():
            self._decided_s = now_s
            self._replicas = {key: ctx.target_num_replicas for key, ctx in contexts.items()}
            try:
                self._replicas = self._decide(contexts)
            except Exception:
                # It would keep Serve's controller from all applications after this one.
                logger.exception("the budget's replicas are kept as they are")
        return self._replicas, {}

    def _decide(self, contexts: Mapping[Any, AutoscalingContext]) -> dict[Any, int]:
        wishes = {key: considered(ctx) for key, ctx in contexts.items()}
        claims = {key: _claim(contexts[key], *wish) for key, wish in wishes.items()}
        if _least(claims) > self._budget:
            claims = {key: _claim(contexts[key], *wish, False) for key, wish in wishes.items()}
        budget = max(self._budget, _least(claims))
        shares = share_budget(list(claims.values()), budget)
        replicas = {}
        for key, (deployment, decision) in wishes.items():
            share = shares[claims[key].name]
            if not deployment.dry_run and share != decision.replicas:
                decision = replace(
                    decision,
                    replicas=share,
                    predicted_service_level=claims[key].service_level(share),
                    reason=f"{share} of {decision.replicas} wanted, as all have {budget} together; "
                    f"{decision.reason}",
                )
            replicas[key] = ordered(contexts[key], deployment, decision)
        return replicas


def _claim(
    ctx: AutoscalingContext,
    deployment: ScaledDeployment,
    decision: Decision,
    keep_unknown: bool = True,
) -> Claim:
    """Make the claim of a deployment; one whose load is not known keeps what it has if it may."""
    target, least, wanted = ctx.target_num_replicas, ctx.capacity_adjusted_min_replicas, 0
    demand_per_s = decision.demand_per_s
    if not ctx.current_num_replicas and ctx.total_num_requests > 0:
        # Ray wakes a deployment that has no replica, whatever its policy says.
        least = max(1, least, target)
    elif deployment.dry_run or (demand_per_s is None and keep_unknown):
        least = target
    if not deployment.dry_run:
        wanted = decision.replicas
    service_level: Callable[[int], float] = _unknown_level
    if demand_per_s is not None and deployment.reports:
        service_level = service_level_by_replicas(demand_per_s, decision.sla_rate_per_s, deployment.reports)
    return Claim(
        name=deployment.deployment,
        demand_per_s=demand_per_s or 0.0,
        service_level=service_level,
        min_replicas=least,
        wanted_replicas=max(least, wanted),
        held_replicas=target,
    )


def _unknown_level(replicas: int) -> float:
    return 0.0


def _least(claims: Mapping[Any, Claim]) -> int:
    return sum(claim.min_replicas for claim in claims.values())
