"""The balance of refusals and retries when replicas can hold many requests (RAND)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.optimize import brentq

from autoscaler.sizing.rand import check_load
from policy.errors import InvalidInputError

# A fleet that needs more tries per request than this counts as overloaded.
_MAX_TRIES = 1e4


@dataclass(frozen=True)
class Equilibrium:
    """The rate of tries at which refusals and the retries that they cause are in balance.

    Attributes
    ----------
    attempt_rate_per_s : float
        Tries per second that reach one replica, retries included; infinite under overload.
    busy_probability : float
        Fraction of these tries that the replica refuses.
    """

    attempt_rate_per_s: float
    busy_probability: float


def rand_equilibrium(
    arrival_rate_per_s: float,
    replicas: int,
    full_probability: Callable[[float], float],
    retries: int | None = None,
) -> Equilibrium:
    """Solve for the rate of tries at a replica that can hold many requests.

    Let a be the rate of tries at a replica, P_full(a) the probability that a try finds it full, and
    k the limit of retries. Then a = (λ/n) Σ_{j≤k} P_full(a)^j; without a limit,
    a (1 - P_full(a)) = λ/n. The solution is unique because the accepted rate, a (1 - P_full(a)),
    grows with a. A replica that holds one request has P_full(a) = a/(a + μ), which gives
    P_busy = λ/(nμ) as in Theorem 2.

    Parameters
    ----------
    arrival_rate_per_s : float
        λ, requests per second to all replicas together.
    replicas : int
        n.
    full_probability : callable
        P_full, from the rate of Poisson tries per second to the probability that one is refused.
    retries : int, optional
        k. By default a request is tried until it is served.

    Returns
    -------
    Equilibrium
        If there is no limit of retries and the replicas cannot carry λ: an infinite rate and
        probability 1.

    Raises
    ------
    InvalidInputError
        A value is out of its range.
    """
    check_load(arrival_rate_per_s, replicas)
    if retries is not None and retries < 0:
        raise InvalidInputError(f"retries: must be at least 0, not {retries}")
    share = arrival_rate_per_s / replicas
    if share == 0:
        return Equilibrium(0.0, full_probability(0.0))

    def surplus(rate: float) -> float:
        full = full_probability(rate)
        if retries is None:
            return rate * (1 - full) - share
        return rate - share * sum(full**tries for tries in range(retries + 1))

    max_rate = share * (_MAX_TRIES if retries is None else min(retries + 1, _MAX_TRIES))
    low = high = share
    at_high = surplus(high)
    while at_high < 0 and high < max_rate:
        low, high = high, min(2 * high, max_rate)
        at_high = surplus(high)
    if at_high < 0 and retries is None:
        return Equilibrium(math.inf, 1.0)
    # If every try is refused, the root is the end of the bracket, up to rounding.
    rate = high if at_high <= 0 or high == low else float(brentq(surplus, low, high))
    return Equilibrium(rate, full_probability(rate))
