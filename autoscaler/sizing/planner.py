"""Plan a fleet: the least replicas that keep an SLA, or those that cost least, and their policy."""

import math
from dataclasses import dataclass
from typing import Any

from autoscaler.sizing.estimators import FullBatchEstimator, Prediction, least_replicas
from autoscaler.sizing.rand import theorem_error_bound
from autoscaler.sizing.service_estimator import ServiceEstimator, ServicePrediction
from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective
from policy.optimization import solve
from policy.profile import Profile

#: Replicas beyond the minimum that the search for the lowest cost considers.
MAX_EXTRA_REPLICAS = 8


@dataclass(frozen=True)
class Plan:
    """A number of replicas, their predicted service level, and the batching policy of each.

    The policy is None if the replicas cannot carry the load; so is the power of all together, or if
    the profile has no energy.
    """

    prediction: Prediction
    policy: BatchingPolicy | None
    mean_power_w: float | None

    def describe(
        self, objective: ServiceLevelObjective, prices: "Prices | None" = None
    ) -> dict[str, Any]:
        """Return the plan in JSON's types, with its cost if there are prices."""
        prediction, policy = self.prediction, self.policy
        return {
            "replicas": prediction.replicas,
            "meets_sla": prediction.meets(objective),
            "predicted_percentile_ms": _finite(prediction.percentile_ms),
            "predicted_service_level": prediction.service_level,
            "control_limit": None if policy is None else policy.control_limit,
            "actions": None if policy is None else policy.actions,
            "max_wait_ms": None if policy is None else policy.max_wait_ms,
            "mean_power_w": self.mean_power_w,
            **({} if prices is None else {"cost_per_h": _finite(prices.per_h(self))}),
        }


@dataclass(frozen=True)
class Prices:
    """Prices of replicas and energy, in one currency."""

    per_replica_h: float
    per_kwh: float

    def per_h(self, plan: Plan) -> float:
        """Return the cost per hour; infinite if the replicas cannot carry the load."""
        if plan.mean_power_w is None:
            return math.inf
        energy_h = 1e-3 * plan.mean_power_w * self.per_kwh
        return plan.prediction.replicas * self.per_replica_h + energy_h


class Planner:
    """Plan a number of replicas and their batching policy."""

    def __init__(
        self,
        profile: Profile,
        objective: ServiceLevelObjective,
        estimator: FullBatchEstimator | ServiceEstimator,
    ) -> None:
        self._profile, self._objective = profile, objective
        self._estimator, self._delays = estimator, estimator.delays

    def least(self, arrival_rate_per_s: float, max_replicas: int) -> Plan:
        """Return the plan with the least replicas that keep the SLA, or raise `InfeasibleError`."""
        found = least_replicas(self._estimator, arrival_rate_per_s, self._objective, max_replicas)
        return self._plan(found, arrival_rate_per_s)

    def cheapest(
        self,
        arrival_rate_per_s: float,
        max_replicas: int,
        prices: Prices,
        least: Plan | None = None,
    ) -> Plan:
        """Return the cheapest plan that keeps the SLA; `InfeasibleError` if there is none."""
        best = least or self.least(arrival_rate_per_s, max_replicas)
        last = min(best.prediction.replicas + MAX_EXTRA_REPLICAS, max_replicas)
        for replicas in range(best.prediction.replicas + 1, last + 1):
            if replicas * prices.per_replica_h >= prices.per_h(best):
                break
            plan = self.at(replicas, arrival_rate_per_s)
            if plan.prediction.meets(self._objective) and prices.per_h(plan) < prices.per_h(best):
                best = plan
        return best

    def theorem_error(self, arrival_rate_per_s: float, replicas: int) -> float | None:
        """Bound the error of Theorem 2; None for the estimator that does not use it."""
        estimator = self._estimator
        if not isinstance(estimator, FullBatchEstimator):
            return None
        intensity = arrival_rate_per_s / (replicas * estimator.capacity_per_s)
        return theorem_error_bound(
            intensity, replicas, self._delays.try_ms, estimator.execution_time_ms
        )

    def at(self, replicas: int, arrival_rate_per_s: float) -> Plan:
        """Return the plan with a given number of replicas, whether it keeps the SLA or not."""
        found = self._estimator.predict(arrival_rate_per_s, replicas, self._objective)
        return self._plan(found, arrival_rate_per_s)

    def _plan(self, prediction: Prediction, arrival_rate_per_s: float) -> Plan:
        if isinstance(prediction, ServicePrediction):
            return Plan(prediction, prediction.policy, prediction.mean_power_w)
        share_per_s = arrival_rate_per_s / prediction.replicas
        if share_per_s >= self._estimator.capacity_per_s:
            return Plan(prediction, None, None)
        solution = solve(
            self._profile,
            share_per_s,
            ServiceLevelObjective(
                response_time_ms=self._objective.response_time_ms - self._delays.request_delay_ms,
                percentile=self._objective.percentile,
            ),
        )
        power_w = solution.mean_power_w
        return Plan(
            prediction,
            solution.policy,
            None if power_w is None else prediction.replicas * power_w,
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
