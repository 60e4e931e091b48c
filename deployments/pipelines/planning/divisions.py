"""Search for the cheapest division of workers among the stages that keeps an SLA.

It assumes that more workers in a stage never make the pipeline slower. The minimum of a stage is
therefore its number of workers when all others have plenty; from there divisions are tried in the
order of their cost.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective

Division = Sequence[int]
"""The workers of each stage, in the order of the stages."""

# A stage has plenty of workers with this many more than it needs to keep up.
_PLENTY = 64


@dataclass(frozen=True)
class FoundDivision:
    """A division that keeps the SLA; `is_cheapest` is False if the search ended early."""

    workers: tuple[int, ...]
    tried: int
    is_cheapest: bool


def cheapest_division(
    percentile_ms: Callable[[Division], float],
    sla: ServiceLevelObjective,
    least: Division,
    most: Sequence[float],
    costs: Sequence[float],
    max_divisions: int,
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
    max_divisions : int
        After this many divisions the search ends with one that is nearly the cheapest.

    Raises
    ------
    InfeasibleError
        No division keeps the SLA.
    """
    known_ms: dict[tuple[int, ...], float] = {}

    def ms(workers: Division) -> float:
        key = tuple(workers)
        if key not in known_ms:
            known_ms[key] = percentile_ms(key)
        return known_ms[key]

    def fewest(stage: int) -> int:
        """Return the fewest workers of a stage that keep the SLA when the others have plenty."""
        low, high = least[stage], plenty[stage]
        while low < high:
            middle = (low + high) // 2
            if ms([*plenty[:stage], middle, *plenty[stage + 1 :]]) <= limit_ms:
                high = middle
            else:
                low = middle + 1
        return low

    def with_one_more(workers: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
        return [
            (stage, (*workers[:stage], count + 1, *workers[stage + 1 :]))
            for stage, count in enumerate(workers)
            if count < plenty[stage]
        ]

    limit_ms = sla.response_time_ms
    if ms(least) <= limit_ms:
        return FoundDivision(tuple(least), 1, is_cheapest=True)
    plenty = [int(min(count + _PLENTY, limit)) for count, limit in zip(least, most, strict=True)]
    if ms(plenty) > limit_ms:
        raise InfeasibleError(
            f"no number of workers keeps {sla.in_words()}: with {_PLENTY} more in each stage than "
            f"it needs to keep up, the percentile is {ms(plenty):.4g} ms"
        )
    first = tuple(fewest(stage) for stage in range(len(least)))
    heap, seen = [(float(np.dot(first, costs)), first)], {first}
    while len(known_ms) < max_divisions:
        cost, workers = heapq.heappop(heap)
        if ms(workers) <= limit_ms:
            return FoundDivision(workers, len(known_ms), is_cheapest=True)
        for stage, more in with_one_more(workers):
            if more not in seen:
                seen.add(more)
                heapq.heappush(heap, (cost + costs[stage], more))
    # Too many divisions: add the worker with the largest gain per cost until the SLA is kept.
    workers = first
    while ms(workers) > limit_ms:
        before_ms = ms(workers)
        gains = [
            ((before_ms - ms(more)) / costs[stage], more) for stage, more in with_one_more(workers)
        ]
        workers = max(gains)[1]
    return FoundDivision(workers, len(known_ms), is_cheapest=False)
