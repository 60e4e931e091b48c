"""The result of a solver: an optimal policy, and its performance."""

from dataclasses import dataclass, field
from functools import cached_property

from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.objective import Objective, ServiceLevelObjective, Weights
from policy.profile import Profile
from policy.response_time.evaluation import Evaluation, evaluate


@dataclass(frozen=True, eq=False)
class Solution:
    """An optimal batching policy, and what it achieves.

    Attributes
    ----------
    objective : Weights or ServiceLevelObjective
        What the policy is optimal for.
    """

    profile: Profile
    arrival_rate_per_s: float
    objective: Objective
    policy: BatchingPolicy
    # Mean response in ms and mean power in W, if the solver computes them along with the policy.
    _averages: tuple[float, float | None] | None = None
    _search_evaluation: Evaluation | None = field(default=None, repr=False)

    @cached_property
    def evaluation(self) -> Evaluation:
        """The policy's evaluation, with the distribution of the response time."""
        searched = self._search_evaluation
        if searched is not None and searched.is_exact:
            return searched
        return evaluate(self.profile, self.policy, self.arrival_rate_per_s)

    @property
    def search_evaluation(self) -> Evaluation:
        """The evaluation that the search used; coarse where it is sampled."""
        return self._search_evaluation or self.evaluation

    @property
    def mean_response_ms(self) -> float:
        """Mean response time."""
        return self._averages[0] if self._averages else self.evaluation.mean_response_ms

    @property
    def mean_power_w(self) -> float | None:
        """Mean power; None if the profile has no energy."""
        return self._averages[1] if self._averages else self.evaluation.mean_power_w

    @property
    def average_cost(self) -> float:
        """Latency weight x mean response (ms) + energy weight x mean power (W)."""
        if isinstance(self.objective, ServiceLevelObjective):
            raise InvalidInputError("solution: a service level has no weights for an average cost")
        return self.weigh(self.objective)

    def weigh(self, weights: Weights) -> float:
        """Return `weights`' sum of the mean response (ms) and the mean power (W; 0 if unknown)."""
        power_w = self.mean_power_w or 0.0
        return weights.latency_weight * self.mean_response_ms + weights.energy_weight * power_w

    @property
    def device_busy_fraction(self) -> float:
        """Fraction of the time in which a batch is in service."""
        return self.evaluation.device_busy_fraction

    @cached_property
    def percentile_ms(self) -> float:
        """The objective's percentile of the response time."""
        return self.evaluation.response_percentile_ms(self._service_level_objective.percentile)

    @cached_property
    def service_level(self) -> float:
        """Fraction of the requests that are answered within the objective's response time."""
        return self.evaluation.service_level(self._service_level_objective.response_time_ms)

    @cached_property
    def meets_sla(self) -> bool:
        """Whether the objective's percentile holds."""
        return meets_sla(self._search_evaluation, self._service_level_objective)

    @property
    def _service_level_objective(self) -> ServiceLevelObjective:
        if not isinstance(self.objective, ServiceLevelObjective):
            raise InvalidInputError("solution: was solved for weights, which promise no percentile")
        return self.objective


def meets_sla(evaluation: Evaluation | None, objective: ServiceLevelObjective) -> bool:
    """Return whether a policy keeps up and its percentile holds, whatever the rounding."""
    if evaluation is None:
        return False
    return evaluation.service_level(objective.response_time_ms) >= objective.least_level
