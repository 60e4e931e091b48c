"""When requests arrive: counts per second, and the times within each second.

Counts come from a trace, from a Poisson process, or from one whose rate jumps between two values.
Given how many requests a second has, their times are independent of each other, as those of a
Poisson process are; so a constant rate with `uniform` times is a Poisson process exactly.

Everything is drawn from one generator in the order of the seconds: the same seed gives the same
arrivals, whatever scales the fleet.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from policy.errors import InvalidInputError
from simulator.engines.compiling import compiled

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class WithinSecond(StrEnum):
    """How the requests of a second are spread over it."""

    UNIFORM = "uniform"  # evenly
    LINEAR = "linear"  # with a density that leads from the second before to the one after


def poisson_counts(rate_per_s: float, seconds: int, random: Generator) -> IntArray:
    """Draw the counts per second of a Poisson process, shape (seconds,)."""
    _check_rate("rate_per_s", rate_per_s)
    _check_seconds(seconds)
    return random.poisson(rate_per_s, seconds)


@dataclass(frozen=True)
class TwoStateRate:
    """A rate that jumps between two values: a Markov-modulated Poisson process (MMPP).

    Attributes
    ----------
    low_per_s, high_per_s : float
        The two rates.
    mean_low_s, mean_high_s : float
        How long it stays at each on average; the times are exponential.

    Raises
    ------
    InvalidInputError
        A rate is negative, or a time not above 0.
    """

    low_per_s: float
    high_per_s: float
    mean_low_s: float
    mean_high_s: float

    def __post_init__(self) -> None:
        for name in ("low_per_s", "high_per_s"):
            _check_rate(name, getattr(self, name))
        for name in ("mean_low_s", "mean_high_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidInputError(f"{name}: must be above 0, not {getattr(self, name)}")

    @property
    def mean_per_s(self) -> float:
        """The rate on average."""
        share = self.mean_high_s / (self.mean_low_s + self.mean_high_s)
        return (1 - share) * self.low_per_s + share * self.high_per_s

    def counts(self, seconds: int, random: Generator) -> IntArray:
        """Draw the counts per second, shape (seconds,); jumps within a second count in part."""
        _check_seconds(seconds)
        means_s = (self.mean_low_s, self.mean_high_s)
        is_high = int(random.random() < self.mean_high_s / sum(means_s))
        jumps, states = [0.0], []
        while jumps[-1] < seconds:
            states.append(is_high)
            jumps.append(jumps[-1] + random.exponential(means_s[is_high]))
            is_high = 1 - is_high
        # The time spent at the high rate, up to each jump, and so up to each second.
        high_s = np.concatenate([[0.0], np.cumsum(np.diff(jumps) * states)])
        share = np.diff(np.interp(np.arange(seconds + 1), jumps, high_s))
        rates_per_s = self.low_per_s + share * (self.high_per_s - self.low_per_s)
        counts: IntArray = random.poisson(rates_per_s).astype(np.int64)
        return counts


def scaled_counts(counts: ArrayLike, factor: float, random: Generator) -> IntArray:
    """Multiply counts; what is not whole is rounded up or down at random, right on average."""
    if not 0 < factor < math.inf:
        raise InvalidInputError(f"scale: must be above 0, not {factor}")
    scaled = factor * np.asarray(counts, dtype=np.float64)
    whole = np.floor(scaled)
    return (whole + (random.random(scaled.size) < scaled - whole)).astype(np.int64)


class ArrivalTimes:
    """The arrival times of one second after the other.

    Parameters
    ----------
    counts : ndarray of int, shape (seconds,)
    within_second : WithinSecond
    random : Generator
    """

    def __init__(self, counts: IntArray, within_second: WithinSecond, random: Generator) -> None:
        self._counts = counts
        self._random = random
        # Relative density at the borders of the seconds: between two, the mean of their counts.
        padded = np.concatenate([counts[:1], counts, counts[-1:]]).astype(np.float64)
        self._borders = (padded[1:] + padded[:-1]) / 2
        self._linear = within_second is WithinSecond.LINEAR

    def of_second(self, second: int) -> FloatArray:
        """Draw the times of `second`, in s, rising; to be called once for each, in order."""
        count = int(self._counts[second])
        gaps = self._random.standard_exponential(count + 1)
        left, right = self._borders[second : second + 2] if self._linear else (1.0, 1.0)
        times = np.empty(count)
        _place(gaps, second, left, right, times)
        return times


@compiled
def _place(gaps: FloatArray, second: int, left: float, right: float, times: FloatArray) -> None:
    """Place arrivals within a second; the gaps between uniform ones are exponential.

    Their density goes from `left` to `right` in a line; what inverts its distribution function is
    written so that nothing cancels.
    """
    total = gaps.sum()
    before_next = np.nextafter(second + 1.0, 0.0)
    passed = 0.0
    for i in range(times.size):
        passed += gaps[i]
        u = passed / total
        root = math.sqrt(max(0.0, left * left + u * (right * right - left * left)))
        times[i] = min(second + u * (left + right) / (left + root), before_next)


def _check_rate(name: str, rate_per_s: float) -> None:
    if not 0 <= rate_per_s < math.inf:
        raise InvalidInputError(f"{name}: must be at least 0 and finite, not {rate_per_s}")


def _check_seconds(seconds: int) -> None:
    if seconds < 1:
        raise InvalidInputError(f"seconds: must be at least 1, not {seconds}")
