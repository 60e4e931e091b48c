"""Sizing for a fleet that runs: it must have an answer, also where the SLA has none."""

from dataclasses import dataclass

from autoscaler.reports import AutoscalerSettings
from autoscaler.sizing import FullBatchEstimator, in_words, least_replicas
from policy.objective import ServiceLevelObjective
from sojourn.errors import InfeasibleError


@dataclass(frozen=True)
class LiveSizing:
    """Sizing with what the replicas report.

    Attributes
    ----------
    batch_size, batch_ms : float
        A full batch, and the time that it takes.
    settings : AutoscalerSettings
    objectives : tuple of ServiceLevelObjective
        The SLAs in force: while one is changing, replicas report two.
    low, high : int
        Bounds of the replicas.
    """

    batch_size: float
    batch_ms: float
    settings: AutoscalerSettings
    objectives: tuple[ServiceLevelObjective, ...]
    low: int
    high: int

    @property
    def _estimator(self) -> FullBatchEstimator:
        service_rate_per_s = 1e3 * self.batch_size / self.batch_ms
        return FullBatchEstimator(service_rate_per_s, self.batch_ms, self.settings.delays)

    def required(self, demand_per_s: float) -> tuple[int, str]:
        """Give the least replicas, and a remark on what cannot be met.

        Of several SLAs the one that needs most counts.
        """
        estimator = self._estimator
        most, remark = self.low, ""
        for objective in self.objectives:
            aim = objective
            try:
                estimator.check_feasible(objective)
            except InfeasibleError:
                remark = f"; {in_words(objective)} is out of reach with any number of replicas"
                aim = self._without_lateness(objective)
            try:
                found = least_replicas(estimator, demand_per_s, aim, self.low, self.high).replicas
            except InfeasibleError:
                found = self.high
                remark = remark or f"; more than {found} would be needed"
            most = max(most, found)
        return most, remark

    def service_level(self, demand_per_s: float, replicas: int) -> float:
        """Predict it; of several SLAs, the lowest."""
        return min(
            self._estimator.predict(demand_per_s, replicas, objective).service_level
            for objective in self.objectives
        )

    def _without_lateness(self, objective: ServiceLevelObjective) -> ServiceLevelObjective:
        """Relax the SLA until only what is refused for good misses it: no overload, at least."""
        delays = self.settings.delays
        latest_ms = delays.request_delay_ms + self.batch_ms + self.settings.retries * delays.try_ms
        return ServiceLevelObjective(latest_ms, objective.percentile)
