"""What is counted while a fleet is simulated."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.compiling import inlined

FloatArray = NDArray[np.float64]

# Bins between one power of two and the next: each is at most 1/128 of its value wide.
_BINS_PER_OCTAVE = 128
_LEAST_EXPONENT, _MOST_EXPONENT = -10, 24
BINS = (_MOST_EXPONENT - _LEAST_EXPONENT) * _BINS_PER_OCTAVE


def bin_edges_ms() -> FloatArray:
    """Give the borders of the histogram's bins, from a microsecond to hours; shape (BINS + 1,)."""
    octaves = 2.0 ** np.arange(_LEAST_EXPONENT, _MOST_EXPONENT)
    steps = 1 + np.arange(_BINS_PER_OCTAVE) / _BINS_PER_OCTAVE
    return np.append(np.outer(octaves, steps), 2.0**_MOST_EXPONENT)


@inlined
def bin_of(response_ms: float) -> int:
    """Give the bin that `response_ms` falls into; what is beyond the ends, the first or last."""
    mantissa, exponent = math.frexp(response_ms)
    octave = exponent - 1 - _LEAST_EXPONENT
    if octave < 0 or response_ms <= 0.0:
        return 0
    return min(octave * _BINS_PER_OCTAVE + int((2 * mantissa - 1) * _BINS_PER_OCTAVE), BINS - 1)


@dataclass(frozen=True, eq=False)
class Tally:
    """Answers, refusals and energy of a whole fleet.

    Attributes
    ----------
    in_time, refused : ndarray of float, shape (seconds,)
        By the second in which the client sent the request.
    energy_j : ndarray of float, shape (seconds,)
        By the second in which the batch started, what follows the end in the last.
    histogram : ndarray of float, shape (BINS,)
        Answered requests by response time.
    """

    in_time: FloatArray
    refused: FloatArray
    energy_j: FloatArray
    histogram: FloatArray

    @classmethod
    def of(cls, seconds: int) -> "Tally":
        """Make an empty one."""
        return cls(np.zeros(seconds), np.zeros(seconds), np.zeros(seconds), np.zeros(BINS))
