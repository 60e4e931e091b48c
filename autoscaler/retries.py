"""Retries: from the tries that replicas count, back to the requests that clients sent."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: With fewer replicas than this, on average, there is one: what it refuses is not tried again.
_SINGLE_BELOW = 1.5


def retries_among(replicas: ArrayLike, retries: int) -> IntArray:
    """Return the retries after which the balancer gives up, by the number of replicas.

    HAProxy does not ask the only replica again (`deployments.haproxy.refusals`).

    Parameters
    ----------
    replicas : array_like of float
        Replicas that serve, on average.
    retries : int
        With several replicas.

    Returns
    -------
    ndarray of int, shape of `replicas`
    """
    return np.where(np.asarray(replicas) < _SINGLE_BELOW, 0, retries)


def given_up_share(
    attempts: ArrayLike, refusals: ArrayLike, finals: ArrayLike, retries: ArrayLike
) -> FloatArray:
    """Estimate the share of the requests that are given up.

    They are refused at every try, or by the balancer itself.

    Parameters
    ----------
    attempts, refusals, finals : array_like of float
        Tries, how many of them were refused, and how many of those by the balancer itself, at its
        concurrency limit: they are not tried again. Same shape.
    retries : array_like of int
        Retries after which the balancer gives up; see `retries_among`.

    Returns
    -------
    ndarray of float, shape of `attempts`
    """
    tried, final = np.maximum(attempts, 1e-9), np.asarray(finals, dtype=np.float64)
    again = np.clip((np.asarray(refusals) - final) / tried, 0.0, 1.0)
    requests = np.maximum(offered_requests(tried, again * tried, retries), 1e-9)
    share: FloatArray = again ** (np.asarray(retries) + 1) + final / requests
    return np.minimum(share, 1.0)


def offered_requests(attempts: ArrayLike, refusals: ArrayLike, retries: ArrayLike) -> FloatArray:
    """Estimate the number of requests behind a number of tries.

    With random routing, every try is refused with the same probability p = refusals / attempts, and
    the balancer gives up after k retries. So a request makes 1 + p + … + p^k =
    (1 - p^(k+1)) / (1 - p) tries on average, by which the attempts are divided.

    Parameters
    ----------
    attempts, refusals : array_like of float
        Tries, and how many of them were refused, without those that the balancer itself refused.
        Same shape.
    retries : array_like of int
        k, the retries after which the balancer gives up; see `retries_among`.

    Returns
    -------
    ndarray of float, shape of `attempts`
        Requests.
    """
    tried = np.asarray(attempts, dtype=np.float64)
    if not np.any(refusals):
        return tried
    refused = np.minimum(np.asarray(refusals, dtype=np.float64), tried)
    p = np.divide(refused, tried, out=np.zeros_like(tried), where=tried > 0)
    certain = p > 1 - 1e-9
    p_below_1 = np.where(certain, 0.0, p)
    tries = np.asarray(retries) + 1
    return tried * np.where(certain, 1 / tries, (1 - p_below_1) / (1 - p_below_1**tries))
