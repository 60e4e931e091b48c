"""Search for the least number of replicas whose predicted service level meets the SLA."""

import math
from bisect import bisect_left
from functools import cache
from typing import TypeVar

from autoscaler.sizing.estimators import Estimator, Prediction
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective

P = TypeVar("P", bound=Prediction)


def least_replicas(
    estimator: Estimator[P],
    arrival_rate_per_s: float,
    objective: ServiceLevelObjective,
    min_replicas: int = 1,
    max_replicas: int = 1000,
) -> P:
    """Find the least number of replicas whose predicted service level meets the SLA.

    The search bisects if the estimator is monotone. Otherwise it tries one number after the other,
    from the least that can carry the load. Either way, one replica fewer would not meet the SLA.

    Parameters
    ----------
    estimator : Estimator
    arrival_rate_per_s : float
        Requests per second to all replicas together.
    objective : ServiceLevelObjective
    min_replicas, max_replicas : int
        Bounds of the search, both included.

    Returns
    -------
    Prediction
        For the number found; of the type that the estimator returns.

    Raises
    ------
    InvalidInputError
        The rate or a bound is out of its range.
    InfeasibleError
        No number within the bounds meets the SLA; the message says what would.
    """
    if not 0 <= arrival_rate_per_s < math.inf:
        raise InvalidInputError(
            f"arrival_rate_per_s: must be at least 0 and finite, not {arrival_rate_per_s}"
        )
    if not 1 <= min_replicas <= max_replicas:
        raise InvalidInputError(
            "replicas: min_replicas must be at least 1 and at most max_replicas, not "
            f"{min_replicas} to {max_replicas}"
        )
    estimator.check_feasible(objective)
    min_stable = math.floor(arrival_rate_per_s / estimator.capacity_per_s) + 1
    low = max(min_replicas, min_stable)
    found = None
    if low <= max_replicas:
        search = _bisect if estimator.monotone else _scan
        found = search(estimator, arrival_rate_per_s, objective, low, max_replicas)
    if found is None:
        raise InfeasibleError(
            f"{max_replicas} replicas do not keep {objective.in_words()} at "
            f"{arrival_rate_per_s:g} requests/s; one can carry {estimator.capacity_per_s:.4g} "
            "at most; allow more replicas, a longer response time or a lower percentile"
        )
    return found


def _bisect(
    estimator: Estimator[P], rate: float, objective: ServiceLevelObjective, low: int, high: int
) -> P | None:
    @cache  # a prediction may take seconds
    def predict(replicas: int) -> P:
        return estimator.predict(rate, replicas, objective)

    # The answer is usually close to `low`, so widen the bracket from there.
    step = 1
    while low + step < high and not predict(low + step).meets(objective):
        low, step = low + step + 1, 2 * step
    numbers = range(low, min(low + step, high) + 1)
    found = bisect_left(numbers, True, key=lambda n: predict(n).meets(objective))
    return None if found == len(numbers) else predict(numbers[found])


def _scan(
    estimator: Estimator[P], rate: float, objective: ServiceLevelObjective, low: int, high: int
) -> P | None:
    for replicas in range(low, high + 1):
        prediction = estimator.predict(rate, replicas, objective)
        if prediction.meets(objective):
            return prediction
    return None
