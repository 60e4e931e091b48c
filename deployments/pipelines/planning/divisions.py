"""The division of workers among the stages that costs least and keeps an SLA: branch and bound.

More workers in any stage are taken not to make the pipeline slower. So the least that a stage can
have is what it needs when all later stages have plenty, and few divisions are left to try.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective

Division = Sequence[int]
"""The workers of each stage, in the order of the stages."""


@dataclass(frozen=True)
class FoundDivision:
    """A division that keeps the SLA; `is_cheapest` is False if the search ended early."""

    workers: tuple[int, ...]
    tried: int
    is_cheapest: bool


# A stage with so many more workers than it needs to keep up has plenty.
_PLENTY = 64


def cheapest_division(
    percentile_ms: Callable[[Division], float],
    sla: ServiceLevelObjective,
    least: Division,
    most: Sequence[float],
    costs: Sequence[float],
    most_tried: int,
) -> FoundDivision:
    """Return the division of least cost that keeps an SLA.

    Parameters
    ----------
    percentile_ms : callable
        Returns the SLA's percentile of a division, in ms.
    sla : ServiceLevelObjective
    least : sequence of int
        What each stage needs to keep up.
    most : sequence of float
        What each stage may have.
    costs : sequence of float
        Of one worker of each stage, above 0.
    most_tried : int
        After so many divisions the search ends with the cheapest so far, once there is one.

    Raises
    ------
    InfeasibleError
        No division keeps the SLA.
    """
    if percentile_ms(least) <= sla.response_time_ms:
        return FoundDivision(tuple(least), 1, is_cheapest=True)
    plenty = [int(min(count + _PLENTY, limit)) for count, limit in zip(least, most, strict=True)]
    best_ms = percentile_ms(plenty)
    if best_ms > sla.response_time_ms:
        raise InfeasibleError(
            f"no number of workers keeps {sla.in_words()}: with {_PLENTY} more in each stage than "
            f"it needs to keep up, the percentile is {best_ms:.4g} ms"
        )
    search = _Search(percentile_ms, sla.response_time_ms, plenty, costs, most_tried)
    bounds = [search.least_of(stage, plenty, count) for stage, count in enumerate(least)]
    search.climb(bounds)
    search.descend((), bounds)
    return FoundDivision(search.best, search.tried, is_cheapest=not search.is_over)


@dataclass
class _Search:
    """A search for the division of least cost: `best` is the cheapest so far that keeps the SLA."""

    percentile_ms: Callable[[Division], float]
    limit_ms: float
    plenty: Division
    costs: Sequence[float]
    most_tried: int
    best: tuple[int, ...] = ()
    tried: int = 2
    _known_ms: dict[tuple[int, ...], float] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether so many have been tried that the search ends."""
        return self.tried >= self.most_tried

    def cost(self, workers: Division) -> float:
        """Return the cost of the first stages, or of all."""
        return float(np.dot(workers, self.costs[: len(workers)]))

    def _ms(self, workers: Division) -> float:
        key = tuple(workers)
        if key not in self._known_ms:
            self.tried += 1
            self._known_ms[key] = self.percentile_ms(key)
        return self._known_ms[key]

    def least_of(self, stage: int, others: Division, least: int) -> int:
        """Return the fewest workers of a stage that keep the SLA with those of the others.

        Where not even plenty do, it is one more than plenty.
        """
        low, high = least, self.plenty[stage] + 1
        while low < high:
            middle = (low + high) // 2
            if self._ms([*others[:stage], middle, *others[stage + 1 :]]) <= self.limit_ms:
                high = middle
            else:
                low = middle + 1
        return low

    def climb(self, bounds: Division) -> None:
        """Add the worker that gains most for its cost, until the SLA is kept: a first division."""
        at = tuple(bounds)
        while self._ms(at) > self.limit_ms:
            further = [
                (*at[:stage], at[stage] + 1, *at[stage + 1 :])
                for stage, most in enumerate(self.plenty)
                if at[stage] < most
            ]
            before_ms = self._ms(at)
            at = max(
                further,
                key=lambda one: (before_ms - self._ms(one)) / (self.cost(one) - self.cost(at)),
            )
        self.best = at

    def descend(self, chosen: tuple[int, ...], bounds: Division) -> None:
        """Try all that may cost less than the best, with the first stages as chosen."""
        stage = len(chosen)
        if stage == len(bounds):
            self.best = chosen
            return
        rest = float(np.dot(bounds[stage + 1 :], self.costs[stage + 1 :]))
        count = bounds[stage]
        if self.is_over or self.cost((*chosen, count)) + rest >= self.cost(self.best):
            return
        count = self.least_of(stage, [*chosen, *self.plenty[stage:]], count)
        while (
            not self.is_over
            and count <= self.plenty[stage]
            and self.cost((*chosen, count)) + rest < self.cost(self.best)
        ):  # fmt: skip
            self.descend((*chosen, count), bounds)
            count += 1
