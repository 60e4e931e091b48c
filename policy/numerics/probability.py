"""Poisson probabilities, and the convolution of many distributions at once."""

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft
from scipy.special import gammaln

FloatArray = NDArray[np.float64]

# The logarithm of 0 is taken as that of this number: exp(-690) leaves no count but 0.
_TINY = 1e-300


def poisson_pmf(count: ArrayLike, mean: ArrayLike) -> FloatArray:
    """Return Poisson probabilities of given counts."""
    n, mu = np.asarray(count, dtype=float), np.asarray(mean, dtype=float)
    whole = np.maximum(n, 0.0)
    pmf = np.exp(whole * np.log(np.maximum(mu, _TINY)) - mu - gammaln(whole + 1))
    return np.where(n < 0, 0.0, pmf) if np.any(n < 0) else np.asarray(pmf)


def poisson_table(length: int, means: ArrayLike) -> FloatArray:
    """Return the Poisson probabilities of all counts below `length`.

    The same numbers as `poisson_pmf`, several times as fast: ``n log μ - μ - log n!`` is computed
    as a product of matrices, so the table is written only twice.
    """
    mu = np.asarray(means, dtype=float)
    factors = np.empty((*mu.shape, 3))
    factors[..., 0] = np.log(np.maximum(mu, _TINY))
    factors[..., 1] = mu
    factors[..., 2] = 1.0
    table = factors @ _exponent_coefficients(length)
    return np.asarray(np.exp(table, out=table))


@lru_cache(maxsize=256)
def _exponent_coefficients(length: int) -> FloatArray:
    n = np.arange(length)
    return np.stack([n, -np.ones(length), -gammaln(n + 1)])


def convolve(first: FloatArray, second: FloatArray) -> FloatArray:
    """Convolve two arrays of non-negative numbers along their last axes; never negative.

    `scipy.signal.fftconvolve` does the same, but importing it takes longer than solving a policy.
    """
    length = first.shape[-1] + second.shape[-1] - 1
    fast = fft.next_fast_len(length, real=True)
    product = fft.rfft(first, fast) * fft.rfft(second, fast)
    return np.maximum(fft.irfft(product, fast)[..., :length], 0.0)
