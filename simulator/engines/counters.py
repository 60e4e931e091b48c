"""What is counted while a fleet is simulated."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.engines.kernel import BINS, BINS_PER_OCTAVE, LEAST_EXPONENT, MOST_EXPONENT

FloatArray = NDArray[np.float64]


def bin_edges_ms() -> FloatArray:
    """Give the borders of the histogram's bins, from a microsecond to hours; shape (BINS + 1,)."""
    octaves = 2.0 ** np.arange(LEAST_EXPONENT, MOST_EXPONENT)
    steps = 1 + np.arange(BINS_PER_OCTAVE) / BINS_PER_OCTAVE
    return np.append(np.outer(octaves, steps), 2.0**MOST_EXPONENT)


@dataclass(frozen=True, eq=False)
class FleetCounters:
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
    def of(cls, seconds: int) -> "FleetCounters":
        """Make an empty one."""
        return cls(np.zeros(seconds), np.zeros(seconds), np.zeros(seconds), np.zeros(BINS))
