"""RAND: the response time of requests that try replicas at random until one has room.

The load balancer sends a request to a replica picked at random. A busy replica refuses it, and the
balancer tries another one, again at random. The balancer need not know the load of any replica, and
the response time has a closed form: A. Gujarati, S. Elnikety, Y. He, K. S. McKinley, B. B.
Brandenburg, "Swayam: Distributed Autoscaling to Meet SLAs of Machine Learning Inference Services
with Resource Efficiency", Middleware 2017, appendix, Theorems 1 and 2.

A try takes the request delay d₁ (balancer to replica), the reply delay d₂ (the refusal back) and
the retry delay Δ (until the next try). With P_busy the probability that a replica refuses, a
request is served on its (r + 1)-th try with probability P_busy^r (1 - P_busy), after a wait of
W_r = r (d₁ + d₂ + Δ) + d₁. Tries are assumed to be independent. This is optimistic if there are few
replicas, or if a try is much shorter than an execution: the replica that refused is then likely to
be busy still at the next try.

The theorems cover replicas that hold one request each. A replica that batches holds many and
refuses only when it is full; `rand_equilibrium` finds P_busy for such replicas.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from policy.errors import InvalidInputError
from policy.try_delays import TryDelays
from policy.values import check_above_0, check_at_least

FloatArray = NDArray[np.float64]
Cdf = Callable[[FloatArray], FloatArray]
"""A vectorized distribution function of a time in ms; called with times of at least 0 only."""

# Relative tolerance, so that rounding does not lose a try that fits exactly.
_ROUNDING = 1e-9
# A fleet that needs more tries per request than this counts as overloaded.
_MAX_ATTEMPTS = 1e4
# Terms of the sum of Theorem 2 that are added at a time.
_BLOCK = 256


def waiting_time_percentile(
    percentile: float,
    arrival_rate_per_s: float,
    replicas: int,
    service_rate_per_s: float,
    delays: TryDelays,
) -> float:
    """Compute a percentile of the time until a replica accepts a request, in ms (Theorem 1).

    ω_p = d₁ + (ln(1 - p/100) / ln(λ/(nμ)) - 1) (d₁ + d₂ + Δ), but at least d₁, which every request
    waits, and infinite if λ ≥ nμ. As in the paper, the number of tries is treated as continuous. λ
    is the rate to all n replicas together, and μ what one serves while it is busy.
    """
    if not 0 < percentile < 100:
        raise InvalidInputError(f"percentile: must be above 0 and below 100, not {percentile}")
    busy = busy_probability(arrival_rate_per_s, replicas, service_rate_per_s)
    if busy >= 1:
        return math.inf
    if busy == 0:
        return delays.request_delay_ms
    retries = math.log1p(-percentile / 100) / math.log(busy) - 1
    return delays.request_delay_ms + max(0.0, retries) * delays.try_ms


def response_time_cdf(
    t_ms: ArrayLike, busy: float, execution_time: float | Cdf, delays: TryDelays
) -> FloatArray:
    """Compute the fraction of requests answered within times in ms, any shape (Theorem 2).

    P(R ≤ t) = Σ_r P_busy^r (1 - P_busy) F_exe(t - W_r) over r ≤ ⌊(t - d₁) / (d₁ + d₂ + Δ)⌋; 0
    everywhere if P_busy is 1. A constant execution time in ms gives a closed form. After
    `delays.retries` a request is never answered; None: there is no limit, as in the paper.
    """
    times = np.asarray(t_ms, dtype=np.float64)
    after, try_ms = times - delays.request_delay_ms, delays.try_ms
    limit = math.inf if delays.retries is None else float(delays.retries)
    if busy >= 1:
        return np.zeros_like(times)
    if not callable(execution_time):
        last = _last_retry(after - execution_time, try_ms, limit)
        return np.where(last >= 0, 1 - np.power(busy, last + 1), 0.0)
    last = _last_retry(after, try_ms, limit)
    if try_ms == 0:
        served = np.where(last >= 0, 1 - np.power(busy, last + 1), 0.0)
        return served * execution_time(np.maximum(after, 0.0))
    share = np.zeros_like(times)
    end = float(np.max(last, initial=-1.0))
    if busy > 0:
        # Later tries contribute less than the rounding error.
        end = min(end, math.log(np.finfo(float).eps / 8) / math.log(busy))
    else:
        end = min(end, 0.0)
    first = 0
    while first <= end:
        r = np.arange(first, min(first + _BLOCK, math.floor(end) + 1))
        left = after[..., np.newaxis] - r * try_ms
        reached = r <= last[..., np.newaxis]
        in_time = np.where(reached, execution_time(np.maximum(left, 0.0)), 0.0)
        share += in_time @ ((1 - busy) * np.power(busy, r))
        first += _BLOCK
    return share


def busy_probability(arrival_rate_per_s: float, replicas: int, service_rate_per_s: float) -> float:
    """Compute the share of time that a replica that holds one request is busy: P_busy = λ/(nμ).

    It is 1 if λ ≥ nμ, and exact below if every request is served in the end.
    """
    check_load(arrival_rate_per_s, replicas)
    check_above_0("service_rate_per_s", service_rate_per_s)
    return min(1.0, arrival_rate_per_s / (replicas * service_rate_per_s))


def theorem_error_bound(
    traffic_intensity: float, replicas: int, try_ms: float, execution_time_ms: float
) -> float:
    """Bound how much Theorem 2 overstates the fraction answered in time, at most 1.

    The theorem assumes independent tries. In fact a refused request picks the same replica again
    with probability 1/n. If a try takes a fraction τ = (d₁ + d₂ + Δ)/S < 1 of an execution S, that
    replica is still busy with probability about 1 - τ, which affects ρ (1 - τ)/n of the requests.
    At higher loads the retried requests also meet each other; simulations bound that effect by a
    factor: ρ (1 - τ)⁺/(n (1 - ρ)^0.6), with ρ = λ/(nμ).

    The bound held for 2 to 200 replicas, ρ from 0.2 to 0.8 and constant execution times, wherever
    the theorem promises 90% or more. It does not cover τ ≥ 1, where the theorem was within 2.5
    percentage points, or ρ ≥ 0.9, where it can be 40 points off.
    """
    if traffic_intensity >= 1:
        return 1.0
    still_busy = max(0.0, 1 - try_ms / execution_time_ms)
    crowd = math.pow(1 - traffic_intensity, -0.6)
    return min(1.0, traffic_intensity * still_busy * crowd / replicas)


def _last_retry(left_ms: FloatArray, try_ms: float, limit: float) -> FloatArray:
    """Return the number of the last retry that fits; -1 if not even the first try does."""
    if try_ms == 0:
        return np.where(left_ms >= -_ROUNDING, limit, -1.0)
    fits = np.floor(left_ms / try_ms + _ROUNDING)
    return np.clip(fits, -1.0, limit)


def check_load(arrival_rate_per_s: float, replicas: int) -> None:
    """Raise `InvalidInputError` if the arrival rate or the number of replicas is out of range."""
    check_at_least(0, "arrival_rate_per_s", arrival_rate_per_s)
    check_at_least(1, "replicas", replicas)


@dataclass(frozen=True)
class Equilibrium:
    """The rate of tries at which refusals and the retries that they cause are in balance.

    `attempt_rate_per_s` reach one replica, retries included, infinite under overload; the share
    `busy_probability` of them is refused.
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
    k the limit of retries. Then a = (λ/n) Σ_{j≤k} P_full(a)^j; without a limit, a (1 - P_full(a)) =
    λ/n. The solution is unique because the accepted rate, a (1 - P_full(a)), grows with a. A
    replica that holds one request has P_full(a) = a/(a + μ), which gives P_busy = λ/(nμ) as in
    Theorem 2. If there is no limit and the replicas cannot carry λ, the rate is infinite and the
    probability 1.
    """
    check_load(arrival_rate_per_s, replicas)
    share = arrival_rate_per_s / replicas
    if share == 0:
        return Equilibrium(0.0, full_probability(0.0))

    def surplus(rate: float) -> float:
        full = full_probability(rate)
        if retries is None:
            return rate * (1 - full) - share
        return rate - share * sum(full**attempts for attempts in range(retries + 1))

    max_rate = share * (_MAX_ATTEMPTS if retries is None else min(retries + 1, _MAX_ATTEMPTS))
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
