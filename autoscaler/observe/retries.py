"""Retries: from the attempts that replicas count, back to the requests that clients sent.

HAProxy tries a refused request again at another random replica, up to `retries` times. Every
attempt at a replica is refused with the same probability p, so of the requests that reach one the
share p^(retries + 1) is given up. What HAProxy refuses itself, at its concurrency limit, is tried
nowhere.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: With fewer replicas than this, on average, there is one: HAProxy does not ask it again.
_SINGLE_BELOW = 1.5


def retries_among(replicas: ArrayLike, retries: int) -> IntArray:
    """Return the retries after which HAProxy gives up, by the number of replicas that serve."""
    return np.where(np.asarray(replicas) < _SINGLE_BELOW, 0, retries)


def offered_requests(
    attempts: ArrayLike, refusals: ArrayLike, by_balancer: ArrayLike, retries: ArrayLike
) -> FloatArray:
    """Estimate the number of requests behind a number of attempts.

    With k retries, a request that reaches replicas makes 1 + p + … + p^k =
    (1 - p^(k+1)) / (1 - p) attempts on average. Refusals include those that are HAProxy's own.
    """
    p, tried = _refused_share(attempts, refusals, by_balancer)
    certain = p > 1 - 1e-9
    p_below_1 = np.where(certain, 0.0, p)
    most = np.asarray(retries) + 1
    per_attempt = np.where(certain, 1 / most, (1 - p_below_1) / (1 - p_below_1**most))
    requests: FloatArray = tried * per_attempt + np.asarray(by_balancer)
    return requests


def given_up_share(
    attempts: ArrayLike, refusals: ArrayLike, by_balancer: ArrayLike, retries: ArrayLike
) -> FloatArray:
    """Estimate the share of the requests that are refused at every attempt, or by HAProxy."""
    p, _ = _refused_share(attempts, refusals, by_balancer)
    requests = offered_requests(attempts, refusals, by_balancer, retries)
    reached = requests - np.asarray(by_balancer)
    lost = reached * p ** (np.asarray(retries) + 1) + np.asarray(by_balancer)
    share: FloatArray = lost / np.maximum(requests, 1e-9)
    return share


def _refused_share(
    attempts: ArrayLike, refusals: ArrayLike, by_balancer: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Return the share of the attempts at replicas that are refused, and their number."""
    denied = np.asarray(by_balancer, dtype=np.float64)
    tried = np.maximum(np.asarray(attempts, dtype=np.float64) - denied, 0.0)
    refused = np.asarray(refusals, dtype=np.float64) - denied
    p = np.divide(refused, tried, out=np.zeros_like(tried), where=tried > 0)
    return np.clip(p, 0.0, 1.0), tried
