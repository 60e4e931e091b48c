"""The counters of a simulated fleet."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoscaler.simulator.engines.kernel import BINS, BINS_PER_OCTAVE, MAX_EXPONENT, MIN_EXPONENT

FloatArray = NDArray[np.float64]


def bin_edges_ms() -> FloatArray:
    """Return the edges of the response-time histogram, from a microsecond to hours, ascending."""
    octaves = 2.0 ** np.arange(MIN_EXPONENT, MAX_EXPONENT)
    steps = 1 + np.arange(BINS_PER_OCTAVE) / BINS_PER_OCTAVE
    return np.append(np.outer(octaves, steps), 2.0**MAX_EXPONENT)


@dataclass(frozen=True, eq=False)
class FleetCounters:
    """Answers, refusals and energy of a whole fleet.

    Attributes
    ----------
    in_time, refused : FloatArray, shape (seconds,)
        Requests answered within the client's SLA, and requests refused by every try, by the second
        in which the client sent them.
    energy_j : FloatArray, shape (seconds,)
        Energy of the batches, by the second in which they started. Batches that start after the
        last second count in it.
    histogram : FloatArray, shape (BINS,)
        Answered requests by response time; `bin_edges_ms` has the edges.
    """

    in_time: FloatArray
    refused: FloatArray
    energy_j: FloatArray
    histogram: FloatArray

    @classmethod
    def zeros(cls, seconds: int) -> "FleetCounters":
        return cls(np.zeros(seconds), np.zeros(seconds), np.zeros(seconds), np.zeros(BINS))
