"""Arrivals: counts per second, and the times within each second.

Counts come from a trace or from a Poisson process. Given the count of a second, the arrival times
in it are independent of each other, as they are in a Poisson process. Poisson counts with `uniform`
times are therefore exactly a Poisson process.

Everything is drawn from one generator in the order of the seconds, so the same seed gives the same
arrivals, whatever scales the fleet.
"""

import math
from enum import StrEnum

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from autoscaler.simulator.engines.compiling import compiled
from policy.errors import InvalidInputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


#: Requests per mean of a trace's rate, which leaves 10% of noise.
REQUESTS_PER_MEAN = 100.0

#: Higher counts are refused: a mistyped rate would fill the memory before anything is simulated.
MAX_PER_S = 10_000_000


class WithinSecond(StrEnum):
    UNIFORM = "uniform"  # at constant density
    LINEAR = "linear"  # at a density that connects the seconds before and after


def poisson_counts(rate_per_s: float, seconds: int, random: Generator) -> IntArray:
    """Draw the counts per second of a Poisson process, shape (seconds,).

    `InvalidInputError`: the rate is above `MAX_PER_S`.
    """
    _check_largest(np.array([rate_per_s]))
    return random.poisson(rate_per_s, seconds)


def scaled_counts(counts: ArrayLike, factor: float, random: Generator) -> IntArray:
    """Multiply counts; fractions are rounded up or down at random, unbiased.

    `InvalidInputError`: a second has more than `MAX_PER_S`.
    """
    scaled = factor * np.asarray(counts, dtype=np.float64)
    _check_largest(scaled)
    whole = np.floor(scaled)
    return (whole + (random.random(scaled.size) < scaled - whole)).astype(np.int64)


def superposed_counts(counts: ArrayLike, factor: float, random: Generator) -> IntArray:
    """Draw the sum of many services like one: its rate smoothed and multiplied, then Poisson.

    Multiplying a trace's counts would turn each request into a burst of `factor` requests. The sum
    of as many independent services has the same rate, but the noise of a Poisson process. It raises
    as `scaled_counts` does.
    """
    rates_per_s = factor * smoothed_rate(counts)
    _check_largest(rates_per_s)
    drawn: IntArray = random.poisson(rates_per_s).astype(np.int64)
    return drawn


def smoothed_rate(counts: ArrayLike) -> FloatArray:
    """Return the mean rate around each second, over a span with `REQUESTS_PER_MEAN` on average.

    Its relative error is about one over the root of them. The span is the same everywhere but at
    the ends, where it is cut off.
    """
    values = np.asarray(counts, dtype=np.float64)
    mean = float(values.mean()) if values.size else 0.0
    half = min(values.size, math.ceil(REQUESTS_PER_MEAN / mean)) // 2 if mean else 0
    sums = np.concatenate([[0.0], np.cumsum(values)])
    first = np.maximum(0, np.arange(values.size) - half)
    last = np.minimum(values.size, np.arange(values.size) + half + 1)
    rates: FloatArray = (sums[last] - sums[first]) / (last - first)
    return rates


class ArrivalTimes:
    """Draws the arrival times of each second, in order."""

    def __init__(self, counts: IntArray, within_second: WithinSecond, random: Generator) -> None:
        self._counts = counts
        self._random = random
        # Relative density at the border of two seconds: the mean of their counts.
        padded = np.concatenate([counts[:1], counts, counts[-1:]]).astype(np.float64)
        self._border_densities = (padded[1:] + padded[:-1]) / 2
        self._linear = within_second is WithinSecond.LINEAR

    def of_second(self, second: int) -> FloatArray:
        """Draw the arrival times of `second` in s, ascending; call it once per second, in order."""
        count = int(self._counts[second])
        gaps = self._random.standard_exponential(count + 1)
        left, right = self._border_densities[second : second + 2] if self._linear else (1.0, 1.0)
        times = np.empty(count)
        _fill_times(gaps, second, left, right, times)
        return times


@compiled
def _fill_times(
    gaps: FloatArray, second: int, left: float, right: float, times: FloatArray
) -> None:
    """Fill in the arrival times of a second whose density goes linearly from `left` to `right`.

    Cumulated exponential gaps, divided by their sum, are uniform times in ascending order. The
    inverse of the distribution function, in a form without cancellation, maps them to the density.
    """
    total = gaps.sum()
    before_next = np.nextafter(second + 1.0, 0.0)
    passed = 0.0
    for i in range(times.size):
        passed += gaps[i]
        u = passed / total
        root = math.sqrt(max(0.0, left * left + u * (right * right - left * left)))
        times[i] = min(second + u * (left + right) / (left + root), before_next)


def _check_largest(per_s: FloatArray) -> None:
    largest = float(np.max(per_s, initial=0.0))
    if not largest <= MAX_PER_S:
        raise InvalidInputError(
            f"arrivals: at most {MAX_PER_S:,} requests per second can be simulated, not {largest:g}"
        )
