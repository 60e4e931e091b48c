"""RAND: the response time of requests that try replicas at random until one has room.

The load balancer sends a request to a replica picked at random. A busy replica refuses it, and the
balancer tries another at random. No replica's load needs to be known, and the response time has
a closed form: A. Gujarati, S. Elnikety, Y. He, K. S. McKinley, B. B. Brandenburg, "Swayam:
Distributed Autoscaling to Meet SLAs of Machine Learning Inference Services with Resource
Efficiency", Middleware 2017, appendix, Theorems 1 and 2.

A try costs d₁ (request delay: balancer to replica), d₂ (reply delay: the refusal back) and Δ (retry
delay: what the balancer waits before the next try). With P_busy the probability that a replica
refuses, a request is served at try r + 1 with probability P_busy^r (1 - P_busy), having waited
W_r = r (d₁ + d₂ + Δ) + d₁. Tries are taken to be independent of each other, which errs on the
hopeful side where there are few replicas or where a try is much shorter than an execution:
the replica that refused is then still busy at the next try.

The theorems are about replicas that hold one request each. A replica that batches holds many and
is busy when it is full; `rand_equilibrium` finds the P_busy of such replicas.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from policy.errors import InvalidInputError

FloatArray = NDArray[np.float64]
Cdf = Callable[[FloatArray], FloatArray]
"""A distribution function of a time in ms, vectorised; asked only for times of at least 0."""

# A whole number of tries that fits exactly must not be lost to rounding.
_ROUNDING = 1e-9
# Beyond this many tries per request a fleet is as good as overloaded.
_MOST_TRIES = 1e4
_BLOCK = 256


def waiting_time_percentile(
    percentile: float,
    arrival_rate_per_s: float,
    replicas: int,
    service_rate_per_s: float,
    request_delay_ms: float,
    reply_delay_ms: float,
    retry_delay_ms: float,
) -> float:
    """Percentile of the time until a replica accepts a request (Theorem 1).

    ω_p = d₁ + (ln(1 - p/100) / ln(λ/(nμ)) - 1) (d₁ + d₂ + Δ), and never below d₁, which every
    request waits. The number of tries is taken as a continuous quantity, as in the paper.

    Parameters
    ----------
    percentile : float
        p, above 0 and below 100.
    arrival_rate_per_s : float
        λ, of all replicas together.
    replicas : int
        n.
    service_rate_per_s : float
        μ, requests per second that one replica serves when it is never idle.
    request_delay_ms, reply_delay_ms, retry_delay_ms : float
        d₁, d₂ and Δ.

    Returns
    -------
    float
        Waiting time in ms; infinite when λ ≥ nμ.

    Raises
    ------
    InvalidInputError
        A value is out of its range.
    """
    if not 0 < percentile < 100:
        raise InvalidInputError(f"percentile: must be above 0 and below 100, not {percentile}")
    busy = busy_probability(arrival_rate_per_s, replicas, service_rate_per_s)
    try_ms = _try_ms(request_delay_ms, reply_delay_ms, retry_delay_ms)
    if busy >= 1:
        return math.inf
    if busy == 0:
        return request_delay_ms
    retries = math.log1p(-percentile / 100) / math.log(busy) - 1
    return request_delay_ms + max(0.0, retries) * try_ms


def response_time_cdf(
    t_ms: ArrayLike,
    arrival_rate_per_s: float,
    replicas: int,
    service_rate_per_s: float,
    execution_time: float | Cdf,
    request_delay_ms: float,
    reply_delay_ms: float,
    retry_delay_ms: float,
    retries: int | None = None,
) -> FloatArray:
    """Share of requests answered within a time (Theorem 2).

    P(R ≤ t) = Σ_r P_busy^r (1 - P_busy) F_exe(t - W_r) over r ≤ ⌊(t - d₁) / (d₁ + d₂ + Δ)⌋, with
    P_busy = λ/(nμ).

    Parameters
    ----------
    t_ms : array_like of float
        t: response times, any shape.
    arrival_rate_per_s, replicas, service_rate_per_s
        λ, n and μ, as for `waiting_time_percentile`.
    execution_time : float or callable
        F_exe: the distribution function of the execution time in ms; or the execution time
        itself where it is always the same, which gives a closed form.
    request_delay_ms, reply_delay_ms, retry_delay_ms : float
        d₁, d₂ and Δ.
    retries : int, optional
        Retries after which the balancer gives up; a request given up is not answered in time.
        Without it, as in the paper, as many as fit into t.

    Returns
    -------
    ndarray of float, shape of `t_ms`
        0 everywhere when λ ≥ nμ.

    Raises
    ------
    InvalidInputError
        A value is out of its range.
    """
    busy = busy_probability(arrival_rate_per_s, replicas, service_rate_per_s)
    return retried_response_time_cdf(
        t_ms,
        busy,
        execution_time,
        request_delay_ms,
        reply_delay_ms,
        retry_delay_ms,
        retries,
    )


def retried_response_time_cdf(
    t_ms: ArrayLike,
    busy: float,
    execution_time: float | Cdf,
    request_delay_ms: float,
    reply_delay_ms: float,
    retry_delay_ms: float,
    retries: int | None = None,
) -> FloatArray:
    """Share of requests answered within a time, given the probability that a try is refused.

    The sum of Theorem 2, whatever P_busy and F_exe come from.

    Parameters
    ----------
    t_ms : array_like of float
        Response times, any shape.
    busy : float
        P_busy; at 1 or more no request is ever answered.
    execution_time, request_delay_ms, reply_delay_ms, retry_delay_ms, retries
        As for `response_time_cdf`.

    Returns
    -------
    ndarray of float, shape of `t_ms`
    """
    times = np.asarray(t_ms, dtype=np.float64)
    try_ms = _try_ms(request_delay_ms, reply_delay_ms, retry_delay_ms)
    if retries is not None and retries < 0:
        raise InvalidInputError(f"retries: must be at least 0, not {retries}")
    if not callable(execution_time) and not execution_time >= 0:
        raise InvalidInputError(f"execution_time: must be at least 0 ms, not {execution_time}")
    if busy >= 1:
        return np.zeros_like(times)
    limit = math.inf if retries is None else float(retries)
    if not callable(execution_time):
        last = _last_retry(times - request_delay_ms - execution_time, try_ms, limit)
        return np.where(last >= 0, 1 - np.power(busy, last + 1), 0.0)

    after = times - request_delay_ms
    last = _last_retry(after, try_ms, limit)
    if try_ms == 0:
        served = np.where(last >= 0, 1 - np.power(busy, last + 1), 0.0)
        return served * execution_time(np.maximum(after, 0.0))
    share = np.zeros_like(times)
    end = float(np.max(last, initial=-1.0))
    if busy > 0:
        # Further tries are too rare to tell.
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
    """Share of time that a replica of one request is busy, P_busy = λ/(nμ); 1 from nμ on.

    Exact as long as every request is served in the end.

    Raises
    ------
    InvalidInputError
        A value is out of its range.
    """
    _check_load(arrival_rate_per_s, replicas)
    if not 0 < service_rate_per_s < math.inf:
        raise InvalidInputError(f"service_rate_per_s: must be above 0, not {service_rate_per_s}")
    return min(1.0, arrival_rate_per_s / (replicas * service_rate_per_s))


@dataclass(frozen=True)
class Equilibrium:
    """Where refusals and the retries that they cause come to rest.

    Attributes
    ----------
    attempt_rate_per_s : float
        Tries that reach one replica, retries included; infinite when overloaded.
    busy_probability : float
        Share of these that it refuses.
    """

    attempt_rate_per_s: float
    busy_probability: float


def rand_equilibrium(
    arrival_rate_per_s: float,
    replicas: int,
    full_probability: Callable[[float], float],
    retries: int | None = None,
) -> Equilibrium:
    """Rate of tries at one replica that can hold many requests, and how often it is full.

    With a the rate of tries at a replica, P_full(a) the probability that they find it full, and
    k the most retries, a = (λ/n) Σ_{j≤k} P_full(a)^j; without a limit of retries this is
    a (1 - P_full(a)) = λ/n. There is one solution: what a replica carries, a (1 - P_full(a)),
    grows with a. For a replica that holds one request, P_full(a) = a/(a + μ), it gives
    P_busy = λ/(nμ): Theorem 2.

    Parameters
    ----------
    arrival_rate_per_s, replicas
        λ and n.
    full_probability : callable
        P_full: from the rate of Poisson tries per second to the probability that one is refused.
    retries : int, optional
        k; without it a request is tried until it is served.

    Returns
    -------
    Equilibrium
        Without a limit of retries, with an infinite rate and probability 1 when the replicas
        cannot carry λ.

    Raises
    ------
    InvalidInputError
        A value is out of its range.
    """
    _check_load(arrival_rate_per_s, replicas)
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

    most = share * (_MOST_TRIES if retries is None else min(retries + 1, _MOST_TRIES))
    low = high = share
    at_high = surplus(high)
    while at_high < 0 and high < most:
        low, high = high, min(2 * high, most)
        at_high = surplus(high)
    if at_high < 0 and retries is None:
        return Equilibrium(math.inf, 1.0)
    # Where every try is refused the root is the end of the bracket, to within a rounding.
    rate = high if at_high <= 0 or high == low else float(brentq(surplus, low, high))
    return Equilibrium(rate, full_probability(rate))


def theorem_error_bound(
    traffic_intensity: float, replicas: int, try_ms: float, execution_time_ms: float
) -> float:
    """Bound by how much Theorem 2 overstates the share answered in time.

    The theorem takes tries as independent. But a refused request tries the same replica again with
    probability 1/n, and where a try takes a share τ = (d₁ + d₂ + Δ)/S < 1 of an execution S, it
    finds that still busy with about 1 - τ: ρ (1 - τ)/n of the requests. At higher loads those that
    try again meet each other as well; simulations bound that by a factor:
    ρ (1 - τ)⁺/(n (1 - ρ)^0.6).

    It held for 2 to 200 replicas and ρ from 0.2 to 0.8, executions that do not vary, wherever the
    theorem promises 90% and more (`benchmarks/paper/rand_errors.py`). It says nothing of τ ≥ 1, where the
    theorem was within 2.5 points, nor of ρ ≥ 0.9, where it can be 40 points off.

    Parameters
    ----------
    traffic_intensity : float
        ρ = λ/(nμ), at least 0.
    replicas : int
        n.
    try_ms, execution_time_ms : float
        d₁ + d₂ + Δ, and S.

    Returns
    -------
    float
        A share of the requests, at most 1.
    """
    if traffic_intensity >= 1:
        return 1.0
    still_busy = max(0.0, 1 - try_ms / execution_time_ms)
    crowd = math.pow(1 - traffic_intensity, -0.6)
    return min(1.0, traffic_intensity * still_busy * crowd / replicas)


def _last_retry(left_ms: FloatArray, try_ms: float, limit: float) -> FloatArray:
    """Last retry that starts in time; -1 where not even the first try does."""
    if try_ms == 0:
        return np.where(left_ms >= -_ROUNDING, limit, -1.0)
    fits = np.floor(left_ms / try_ms + _ROUNDING)
    return np.clip(fits, -1.0, limit)


def _try_ms(request_delay_ms: float, reply_delay_ms: float, retry_delay_ms: float) -> float:
    delays = {
        "request_delay_ms": request_delay_ms,
        "reply_delay_ms": reply_delay_ms,
        "retry_delay_ms": retry_delay_ms,
    }
    for name, delay in delays.items():
        if not 0 <= delay < math.inf:
            raise InvalidInputError(f"{name}: must be at least 0, not {delay}")
    return request_delay_ms + reply_delay_ms + retry_delay_ms


def _check_load(arrival_rate_per_s: float, replicas: int) -> None:
    if not 0 <= arrival_rate_per_s < math.inf:
        raise InvalidInputError(
            f"arrival_rate_per_s: must be at least 0 and finite, not {arrival_rate_per_s}"
        )
    if replicas < 1:
        raise InvalidInputError(f"replicas: must be at least 1, not {replicas}")
