r"""A Poisson process whose rate switches between two values: MMPP(2).

The rate is :math:`\lambda_1` or :math:`\lambda_2`; it stays at the first for an exponential time of
rate :math:`q_1`, at the second for one of rate :math:`q_2`. The number of arrivals in a time
:math:`t` and the state at its end have the probabilities :math:`P_n(t)`, 2 x 2 matrices with the
generating function

.. math:: \sum_n z^n P_n(t) = \exp((D_0 + z D_1)\,t),\quad
   D_1 = \operatorname{diag}(\lambda_1, \lambda_2),\quad D_0 = Q - D_1 .

`CountMoments` estimates the process live, from counts in short windows. Their index of dispersion
over windows of several lengths gives the variance of the rate and how fast it is forgotten; their
third moment tells rare bursts from rare lulls (`fit`).

Source: Fischer, Meier-Hellstern, "The Markov-modulated Poisson process (MMPP) cookbook",
Performance Evaluation 18 (1993).
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.fft import next_fast_len

from policy.errors import InvalidInputError

FloatArray = NDArray[np.float64]


# Windows per count at which the dispersion is measured: 0.1 to 10 s for counts per 0.1 s.
_SCALES = (1, 3, 10, 30, 100)
# The fraction of the time in a state is at least this: a rarer one is not told from chance.
_MIN_PROBABILITY = 0.02
# Stays that are tried, in windows: from too short to be seen to longer than the longest window.
_MIN_RELAXATION, _MAX_RELAXATION = 0.3, 300.0
# An index of dispersion within so many standard errors of 1 is that of Poisson arrivals.
_SIGNIFICANT = 3.0
# Closer eigenvalues are taken as this far apart, per millisecond: their difference is divided by.
_TINY_ROOT = 1e-9
# Counts beyond the points of the transform appear in lower counts, this much smaller. Rounding
# errors grow by at most the inverse of its root, so both stay below 1e-10.
_DAMPING = 1e-11


@dataclass(frozen=True)
class Mmpp:
    """A Poisson process whose rate switches between two values.

    Attributes
    ----------
    rates_per_s : tuple of two floats
        Arrivals per second in each state; at least 0, not both 0.
    stays_s : tuple of two floats
        Mean time in each state; above 0.

    Raises
    ------
    InvalidInputError
        A value is out of range.
    """

    rates_per_s: tuple[float, float]
    stays_s: tuple[float, float]

    def __post_init__(self) -> None:
        if not (min(self.rates_per_s) >= 0 and 0 < sum(self.rates_per_s) < math.inf):
            raise InvalidInputError(
                f"rates_per_s: must be at least 0, and one above 0, not {self.rates_per_s}"
            )
        if not (min(self.stays_s) > 0 and max(self.stays_s) < math.inf):
            raise InvalidInputError(f"stays_s: must be above 0, not {self.stays_s}")

    @property
    def state_probabilities(self) -> FloatArray:
        """Fraction of the time in each state, shape (2,)."""
        return np.array(self.stays_s) / sum(self.stays_s)

    @property
    def mean_rate_per_s(self) -> float:
        """Mean arrival rate."""
        return float(self.state_probabilities @ self.rates_per_s)

    @property
    def relaxation_s(self) -> float:
        """Time constant at which the rate's covariance decays."""
        return 1 / sum(1 / stay for stay in self.stays_s)

    def index_of_dispersion(self, window_s: ArrayLike) -> FloatArray:
        """Return the variance over the mean of the counts in windows, same shape.

        Beyond 1 it is the variance of the rate's integral over the window: the rate's covariance
        decays exponentially.
        """
        first, second = self.state_probabilities
        variance = first * second * (self.rates_per_s[0] - self.rates_per_s[1]) ** 2
        x = np.asarray(window_s, dtype=float) / self.relaxation_s
        spread = 2 * variance / self.mean_rate_per_s * self.relaxation_s
        return np.asarray(1 + spread * (1 + np.expm1(-x) / x))

    @cached_property
    def arrivals(self) -> FloatArray:
        """D1, arrivals per millisecond, shape (2, 2)."""
        return np.diag(np.array(self.rates_per_s) / 1e3)

    @cached_property
    def no_arrivals(self) -> FloatArray:
        """D0, transitions per millisecond without an arrival, shape (2, 2)."""
        leave = 1e-3 / np.array(self.stays_s)
        return np.array([[-leave[0], leave[0]], [leave[1], -leave[1]]]) - self.arrivals

    @cached_property
    def next_arrival(self) -> FloatArray:
        """The state at the next arrival, by the state now, shape (2, 2)."""
        return np.asarray(np.linalg.solve(-self.no_arrivals, self.arrivals))

    def transforms(self, times_ms: ArrayLike, z: NDArray[np.complex128]) -> NDArray[np.complex128]:
        """Return exp((D0 + z D1) t), shapes (points,) for z and (*times.shape, 2, 2, points)."""
        t = np.asarray(times_ms, dtype=float)[..., None]
        d0, d1 = self.no_arrivals, self.arrivals
        upper, lower = d0[0, 0] + z * d1[0, 0], d0[1, 1] + z * d1[1, 1]
        mean, half = (upper + lower) / 2, (upper - lower) / 2
        root = np.sqrt(half**2 + d0[0, 1] * d0[1, 0])
        root = np.where(np.abs(root) < _TINY_ROOT, _TINY_ROOT, root)
        rising, falling = np.exp((mean + root) * t), np.exp((mean - root) * t)
        even, odd = (rising + falling) / 2, (rising - falling) / (2 * root)
        result = np.empty((*t.shape[:-1], 2, 2, z.size), complex)
        result[..., 0, 0, :] = even + half * odd
        result[..., 0, 1, :] = d0[0, 1] * odd
        result[..., 1, 0, :] = d0[1, 0] * odd
        result[..., 1, 1, :] = even - half * odd
        return result

    def states_after(self, times_ms: ArrayLike) -> FloatArray:
        """Return the state after a time by the state before, shape (*times.shape, 2, 2)."""
        return self.transforms(times_ms, np.ones(1, complex))[..., 0].real

    def counts_reached(self, time_ms: float) -> int:
        """Return a number of arrivals that a time exceeds with a probability below 1e-15."""
        most = 1e-3 * max(self.rates_per_s) * time_ms
        return int(most + 8.5 * math.sqrt(most) + 24)

    def counts(self, length: int, times_ms: ArrayLike) -> FloatArray:
        """Return P_n(t) for n below `length`, shape (*times.shape, length, 2, 2).

        By the discrete Fourier transform of the generating function on a circle. On the unit circle
        it needs as many points as there can be arrivals. Where few counts are asked for, twice
        as many do on a smaller circle, which damps higher counts (`_DAMPING`).
        """
        times = np.asarray(times_ms, dtype=float)
        grid = _CountGrid.of(length, self.counts_reached(float(np.max(times, initial=0.0))))
        return np.moveaxis(grid.counts(self.transforms(times, grid.z)), -1, -3)

    def mixed_counts(self, length: int, times_ms: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the sum of w P_n(t) over times t, shape (length, 2).

        Parameters
        ----------
        length : int
        times_ms : ndarray of float, shape (times,)
        weights : ndarray of float, shape (times, 2)
            w, by the state at the beginning.
        """
        grid = _CountGrid.of(length, self.counts_reached(float(np.max(times_ms, initial=0.0))))
        mixed = np.einsum("ti,tijz->jz", weights, self.transforms(times_ms, grid.z))
        return grid.counts(mixed).T


@dataclass(frozen=True)
class _CountGrid:
    """Points z at which a generating function is taken, to find the first `length` counts."""

    length: int
    points: int
    radius: float

    @classmethod
    def of(cls, length: int, reached: int) -> "_CountGrid":
        damped = 2 * length < reached
        points = next_fast_len(max(2 * length if damped else reached, 2), real=True)
        return cls(length, points, _DAMPING ** (1 / points) if damped else 1.0)

    @cached_property
    def z(self) -> NDArray[np.complex128]:
        angles = np.arange(self.points // 2 + 1) / self.points
        return np.asarray(self.radius * np.exp(-2j * np.pi * angles))

    def counts(self, transforms: NDArray[np.complex128]) -> FloatArray:
        """Return the counts, shapes (..., points of z) to (..., length)."""
        found = np.zeros((*transforms.shape[:-1], self.length))
        table = np.fft.irfft(transforms, self.points)[..., : self.length]
        found[..., : table.shape[-1]] = table * self.radius ** -np.arange(table.shape[-1])
        return np.maximum(found, 0.0)


class CountMoments:
    """The first moments of counts in windows of several lengths, old counts forgotten.

    Parameters
    ----------
    window_s : float
        Length of the windows that are counted.
    memory_s : float
        Time after which a count keeps 1/e of its weight.
    """

    def __init__(self, window_s: float, memory_s: float) -> None:
        self._window_s = window_s
        self._scales = [_Scale(scale, memory_s / (scale * window_s)) for scale in _SCALES]

    def observe(self, count: float) -> None:
        """Record the number of arrivals in the next window."""
        for scale in self._scales:
            scale.observe(count)

    def fit(self) -> Mmpp | None:
        """Return the MMPP(2) that matches the counts; None if they are like Poisson arrivals.

        The variance of the rate and its relaxation time (1 / (1 / one stay + 1 / the other)) are a
        least-squares fit of the logarithm of the index of dispersion, weighted by the number of
        windows. The asymmetry of the states follows from the third cumulant of the counts in the
        window closest to the relaxation time.
        """
        known = [scale for scale in self._scales if scale.weight >= 5 and scale.mean > 0]
        if not known:
            return None
        errors = np.array([math.sqrt(2 / scale.weight) for scale in known])
        indices = np.array([scale.variance / scale.mean for scale in known])
        if not np.any(indices > 1 + _SIGNIFICANT * errors):
            return None
        lengths = np.array([scale.length for scale in known], dtype=float)
        relaxations = np.geomspace(_MIN_RELAXATION, _MAX_RELAXATION, 60)[:, None]
        # Index - 1 is the excess of an endless window times this.
        shape = 1 + np.expm1(-lengths / relaxations) * relaxations / lengths
        excess = np.geomspace(1e-3, 1e5, 240)
        model = np.log1p(excess[:, None, None] * shape)
        misfit = np.sum(((model - np.log(np.maximum(indices, 0.1))) / errors) ** 2, axis=-1)
        best = np.unravel_index(int(np.argmin(misfit)), misfit.shape)
        relaxation = float(relaxations[best[1], 0])
        mean = known[0].mean  # arrivals per window
        variance = float(excess[best[0]]) * mean / (2 * relaxation)
        nearest = min(known, key=lambda scale: abs(math.log(scale.length / relaxation)))
        return self._with_moments(mean, variance, relaxation, nearest)

    def _with_moments(
        self, mean: float, variance: float, relaxation: float, scale: "_Scale"
    ) -> Mmpp:
        """Return the process with these moments of its rate per window."""
        t = float(scale.length)
        x = t / relaxation
        # The third cumulant of the mean number in a window is (above - below) * variance * this.
        lag = 6 * relaxation**3 * (x - 2 + (x + 2) * math.exp(-x))
        asymmetry = scale.third_factorial_cumulant / (variance * lag)
        swing = math.sqrt(asymmetry**2 + 4 * variance)
        high_share = min(max((1 - asymmetry / swing) / 2, _MIN_PROBABILITY), 1 - _MIN_PROBABILITY)
        # The rates are above and below the mean by so much; the lower is not negative.
        below = min(math.sqrt(variance * high_share / (1 - high_share)), mean)
        above = variance / below
        high_share = below / (above + below)
        stays = relaxation / (1 - high_share), relaxation / high_share
        return Mmpp(
            ((mean - below) / self._window_s, (mean + above) / self._window_s),
            (stays[1] * self._window_s, stays[0] * self._window_s),
        )


class _Scale:
    """Weighted moments of the counts in windows of one length."""

    def __init__(self, length: int, memory: float) -> None:
        self.length = length
        self._keep = math.exp(-1 / max(memory, 1.0))
        self._windows = 0
        self._count = 0.0
        self._weight = self._weight_of_squares = 0.0
        self._sums = [0.0, 0.0, 0.0]

    def observe(self, count: float) -> None:
        self._count += count
        self._windows += 1
        if self._windows < self.length:
            return
        keep, value = self._keep, self._count
        self._weight = keep * self._weight + 1
        self._weight_of_squares = keep**2 * self._weight_of_squares + 1
        self._sums = [
            keep * total + value**power for power, total in enumerate(self._sums, start=1)
        ]
        self._windows, self._count = 0, 0.0

    @property
    def weight(self) -> float:
        """Number of windows that as many equal weights would have."""
        return self._weight**2 / self._weight_of_squares if self._weight else 0.0

    @property
    def mean(self) -> float:
        return self._sums[0] / self._weight

    @property
    def variance(self) -> float:
        biased = self._sums[1] / self._weight - self.mean**2
        return biased * self.weight / (self.weight - 1)

    @property
    def third_factorial_cumulant(self) -> float:
        mean, variance = self.mean, self.variance
        squares, cubes = self._sums[1] / self._weight, self._sums[2] / self._weight
        central = cubes - 3 * mean * squares + 2 * mean**3
        return central - 3 * variance + 2 * mean
