"""The autoscaling policy of an application whose deployments share a budget of replicas.

Ray calls the policy of an application instead of those of its deployments. In the config file::

    applications:
      - name: pipeline
        autoscaling_policy:
          policy_function: autoscaler.application_adapter:SojournBudgetPolicy
          policy_kwargs: {replica_budget: 8}

Each deployment's autoscaler decides how many replicas it wants. If that is more than the budget in
total, `autoscaler.sizing.budget` shares the budget. A change of the budget replaces all replicas,
because `policy_kwargs` are part of the application's code version to Ray.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ray.serve.config import AutoscalingContext

from autoscaler.decision import Decision
from autoscaler.ray_adapter import DECISION_PERIOD_S, apply_decision, decide
from autoscaler.scaled_deployments import ScaledDeployment
from autoscaler.sizing.budget import Claim, service_level_by_replicas, share_budget
from policy.errors import InvalidInputError

logger = logging.getLogger("ray.serve")


class SojournBudgetPolicy:
    """The policy of an application's ``autoscaling_policy``, with a limit on its replicas.

    Parameters
    ----------
    replica_budget : int
        The most replicas that all deployments may have together. If the sum of their `min_replicas`
        is higher, that sum is the budget.

    Raises
    ------
    InvalidInputError
        The budget is not a whole number of at least 1.
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
        """Return the number of replicas of each deployment, and no policy state."""
        now_s = max((ctx.current_time for ctx in contexts.values()), default=0.0)
        is_recent = 0 <= now_s - self._decided_s < DECISION_PERIOD_S
        if not is_recent or self._replicas.keys() != contexts.keys():
            self._decided_s = now_s
            self._replicas = {key: ctx.target_num_replicas for key, ctx in contexts.items()}
            try:
                self._replicas = self._decide(contexts)
            except Exception:
                # An exception would keep Serve's controller from scaling the other applications.
                logger.exception(
                    "the autoscaler failed; the replicas of all deployments are kept as they are"
                )
        return self._replicas, {}

    def _decide(self, contexts: Mapping[Any, AutoscalingContext]) -> dict[Any, int]:
        wanted = {key: decide(ctx) for key, ctx in contexts.items()}
        claims = {key: _claim(contexts[key], *one) for key, one in wanted.items()}
        if _total_min(claims) > self._budget:
            claims = {
                key: _claim(contexts[key], *one, keep_unknown=False) for key, one in wanted.items()
            }
        budget = max(self._budget, _total_min(claims))
        shares = share_budget(list(claims.values()), budget)
        replicas = {}
        for key, (deployment, decision) in wanted.items():
            share = shares[claims[key].name]
            if not deployment.dry_run and share != decision.replicas:
                decision = replace(
                    decision,
                    replicas=share,
                    predicted_service_level=claims[key].service_level(share),
                    reason=f"{share} of {decision.replicas} wanted, within a budget of {budget}; "
                    f"{decision.reason}",
                )
            replicas[key] = apply_decision(contexts[key], deployment, decision)
        return replicas


def _claim(
    ctx: AutoscalingContext,
    deployment: ScaledDeployment,
    decision: Decision,
    *,
    keep_unknown: bool = True,
) -> Claim:
    """Return a deployment's claim on the budget.

    A deployment whose load is unknown claims the replicas that it has, if `keep_unknown`.
    """
    target, minimum, wanted = ctx.target_num_replicas, ctx.capacity_adjusted_min_replicas, 0
    demand_per_s = decision.demand_per_s
    if not ctx.current_num_replicas and ctx.total_num_requests > 0:
        # Ray starts a first replica for waiting requests, whatever the policy says.
        minimum = max(1, minimum, target)
    elif deployment.dry_run or (demand_per_s is None and keep_unknown):
        minimum = target
    if not deployment.dry_run:
        wanted = decision.replicas
    service_level: Callable[[int], float] = _no_service_level
    if demand_per_s is not None and deployment.reports:
        service_level = service_level_by_replicas(
            demand_per_s, decision.sla_rate_per_s, deployment.reports
        )
    return Claim(
        name=deployment.deployment,
        demand_per_s=demand_per_s or 0.0,
        service_level=service_level,
        min_replicas=minimum,
        wanted_replicas=max(minimum, wanted),
        held_replicas=target,
    )


def _no_service_level(replicas: int) -> float:
    return 0.0


def _total_min(claims: Mapping[Any, Claim]) -> int:
    return sum(claim.min_replicas for claim in claims.values())
