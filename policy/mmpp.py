r"""A Poisson process whose rate switches between two values: MMPP(2).

The rate is :math:`\lambda_1` or :math:`\lambda_2`; it stays at the first for an exponential time of
rate :math:`q_1`, at the second for one of rate :math:`q_2`. The number of arrivals in a time
:math:`t` and the state at its end have the probabilities :math:`P_n(t)`, 2 x 2 matrices with the
generating function

.. math:: \sum_n z^n P_n(t) = \exp((D_0 + z D_1)\,t),\quad
   D_1 = \operatorname{diag}(\lambda_1, \lambda_2),\quad D_0 = Q - D_1 .

Source: Fischer, Meier-Hellstern, "The Markov-modulated Poisson process (MMPP) cookbook",
Performance Evaluation 18 (1993).
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from policy.errors import InvalidInputError

FloatArray = NDArray[np.float64]


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

    def index_of_dispersion(self, window_s: ArrayLike) -> FloatArray:
        """Return the variance over the mean of the counts in windows, same shape.

        Equation 19 of the source.
        """
        x = np.asarray(window_s, dtype=float) * sum(1 / stay for stay in self.stays_s)
        first, second = self.state_probabilities
        swing = self.rates_per_s[0] - self.rates_per_s[1]
        variance = first * second * swing**2
        relaxation_s = 1 / sum(1 / stay for stay in self.stays_s)
        spread = 2 * variance / self.mean_rate_per_s * relaxation_s
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
        """Return exp((D0 + z D1) t), shape (*times.shape, *z.shape, 2, 2)."""
        t = np.asarray(times_ms, dtype=float).reshape(np.shape(times_ms) + (1,) * z.ndim)
        d0, d1 = self.no_arrivals, self.arrivals
        upper, lower = d0[0, 0] + z * d1[0, 0], d0[1, 1] + z * d1[1, 1]
        mean, half = (upper + lower) / 2, (upper - lower) / 2
        root = np.sqrt(half**2 + d0[0, 1] * d0[1, 0])
        root = np.where(np.abs(root) < 1e-9, 1e-9, root)
        rising, falling = np.exp((mean + root) * t), np.exp((mean - root) * t)
        even, odd = (rising + falling) / 2, (rising - falling) / (2 * root)
        return np.stack(
            [
                np.stack([even + half * odd, d0[0, 1] * odd], axis=-1),
                np.stack([d0[1, 0] * odd, even - half * odd], axis=-1),
            ],
            axis=-2,
        )

    def states_after(self, times_ms: ArrayLike) -> FloatArray:
        """Return the state after a time by the state before, shape (*times.shape, 2, 2)."""
        return self.transforms(times_ms, np.ones(1, complex))[..., 0, :, :].real

    def counts_reached(self, time_ms: float) -> int:
        """Return a number of arrivals that a time exceeds with a probability below 1e-15."""
        most = 1e-3 * max(self.rates_per_s) * time_ms
        return int(most + 8.5 * math.sqrt(most) + 24)

    def counts(self, length: int, times_ms: ArrayLike) -> FloatArray:
        """Return P_n(t) for n below `length`, shape (*times.shape, length, 2, 2).

        By the discrete Fourier transform of the generating function at the roots of unity, which
        is exact but for counts beyond `counts_reached`.
        """
        times = np.asarray(times_ms, dtype=float)
        reached = self.counts_reached(float(np.max(times, initial=0.0)))
        points = 1 << (max(reached, 2) - 1).bit_length()
        z = np.exp(-2j * np.pi * np.arange(points // 2 + 1) / points)
        table = np.fft.irfft(self.transforms(times, z), points, axis=-3)
        found = np.zeros((*times.shape, length, 2, 2))
        found[..., : min(length, points), :, :] = table[..., :length, :, :]
        return np.maximum(found, 0.0)
