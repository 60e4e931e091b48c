"""Arrivals whose rate switches between two values."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SwitchingArrivals:
    """A Poisson process whose rate takes two values in turn, for exponential times."""

    rates_per_s: tuple[float, float]
    stays_s: tuple[float, float]

    def times_s(self, duration_s: float, seed: int) -> NDArray[np.float64]:
        """Draw the arrival times up to `duration_s`, ascending."""
        rng = np.random.default_rng(seed)
        cycles = int(1.5 * duration_s / sum(self.stays_s)) + 20
        stays_s = rng.exponential(np.tile(self.stays_s, cycles))
        switches_s = np.append(0.0, np.cumsum(stays_s))
        assert switches_s[-1] > duration_s
        expected = np.append(0.0, np.cumsum(np.tile(self.rates_per_s, cycles) * stays_s))
        # Arrivals of rate 1 in the time in which one request is expected per unit.
        arrivals = np.sort(rng.uniform(0, expected[-1], rng.poisson(expected[-1])))
        times_s = np.interp(arrivals, expected, switches_s)
        return np.asarray(times_s[times_s < duration_s])
