"""The workers of each stage by the load, as planned in advance."""

import itertools
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from policy.load_lateness import LoadLatenessCurve
from policy.objective import Objective, ServiceLevelObjective, Weights

#: A share of workers may exceed a whole number by this rounding error.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class StagePool:
    """A `Fleet` of the autoscaler: ``workers[i]`` of a stage take ``rates_per_s[i]`` items."""

    rates_per_s: tuple[float, ...]
    workers: tuple[int, ...]
    late_share_allowed: float

    @property
    def capacity_per_s(self) -> float:
        return min(rate / count for rate, count in zip(self.rates_per_s, self.workers, strict=True))

    def share_of_workers(self, rate_per_s: float) -> float:
        """Return the fractional number of workers that a rate needs, to be added up."""
        at = bisect_left(self.rates_per_s, rate_per_s)
        if at == len(self.workers):
            return self.workers[-1] * rate_per_s / self.rates_per_s[-1]
        below_per_s = self.rates_per_s[at - 1] if at else 0.0
        part = (rate_per_s - below_per_s) / (self.rates_per_s[at] - below_per_s)
        return self.workers[at] - 1 + part

    def replicas_needed(self, arrival_rate_per_s: float, late_share_allowed: float) -> int:
        return max(1, math.ceil(self.share_of_workers(arrival_rate_per_s) - _ROUNDING))

    def rate_within_sla_per_s(self, late_share_allowed: float, replicas: int) -> float:
        if replicas > max(self.workers):
            return self.rates_per_s[-1] / self.workers[-1]
        known = zip(self.rates_per_s, self.workers, strict=True)
        within_per_s = [rate_per_s for rate_per_s, count in known if count <= replicas]
        return within_per_s[-1] / replicas if within_per_s else self.capacity_per_s

    def lost_share(self, arrival_rate_per_s: float, replicas: int) -> float:
        in_time_per_s = replicas * self.rate_within_sla_per_s(self.late_share_allowed, replicas)
        taken = min(1.0, in_time_per_s / arrival_rate_per_s) if arrival_rate_per_s > 0 else 1.0
        return 1 - (1 - self.late_share_allowed) * taken


@dataclass(frozen=True)
class DivisionTable:
    """The workers of each stage by the rate of the requests.

    ``divisions[i]`` keeps the SLA up to ``rates_per_s[i]``; `budgets_ms` and `least_power` are of
    its plan (`planning.sizing.PipelinePlan`). `items_per_request` are expected in each stage.
    `curve` is that of one pipeline with the last division, which serves `capacity_per_s` in full
    batches; None where more replicas of the pipeline would carry no more.
    """

    rates_per_s: tuple[float, ...]
    divisions: tuple[Mapping[str, int], ...]
    budgets_ms: tuple[Mapping[str, float], ...]
    items_per_request: Mapping[str, float] = field(default_factory=dict)
    curve: LoadLatenessCurve | None = None
    capacity_per_s: float = 0.0
    least_power: tuple[Mapping[str, ServiceLevelObjective], ...] = ()

    def pool(self, stage: str, late_share_allowed: float) -> StagePool:
        items = self.items_per_request.get(stage, 1.0)
        entries = zip(self.rates_per_s, self.divisions, strict=True)
        groups = itertools.groupby(entries, lambda entry: entry[1][stage])
        highest = [(items * [*group][-1][0], workers) for workers, group in groups]
        rates_per_s, workers = zip(*highest, strict=True)
        return StagePool(rates_per_s, workers, late_share_allowed)

    def budget_ms(self, stage: str, items_per_s: float) -> float:
        return self.budgets_ms[self._entry(stage, items_per_s)][stage]

    def objective(self, stage: str, items_per_s: float) -> Objective:
        entry = self._entry(stage, items_per_s)
        saving = self.least_power[entry] if self.least_power else {}
        return saving.get(stage, Weights())

    def _entry(self, stage: str, items_per_s: float) -> int:
        rate_per_s = items_per_s / self.items_per_request.get(stage, 1.0)
        return min(bisect_left(self.rates_per_s, rate_per_s), len(self.rates_per_s) - 1)
