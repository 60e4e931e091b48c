"""Convolution of many rows at once."""

import numpy as np
from numpy.typing import NDArray
from scipy import fft

FloatArray = NDArray[np.float64]


def convolve(first: FloatArray, second: FloatArray) -> FloatArray:
    """Convolve two arrays of numbers of at least 0 along their last axes; the others broadcast.

    `scipy.signal.fftconvolve` does the same, but to import it takes longer than to solve a policy.
    """
    length = first.shape[-1] + second.shape[-1] - 1
    fast = fft.next_fast_len(length, real=True)
    product = fft.rfft(first, fast) * fft.rfft(second, fast)
    return np.maximum(fft.irfft(product, fast)[..., :length], 0.0)
