"""Counts of requests, by response time, that wait at a free device for others to come."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import pdtrc

from policy.response_time.age_distribution import Panels
from policy.response_time.embedded_chain import QueueSystem, poisson_pmf

FloatArray = NDArray[np.float64]


class Wait:
    """Requests of given ages that wait for a number of arrivals."""

    def __init__(
        self, rate: float, ages: FloatArray, masses: FloatArray, missing: int, time_ms: float
    ) -> None:
        self._rate, self._missing = rate, missing
        self._since, self._masses = ages + time_ms, masses
        self.count = float(masses.sum())
        self.total_response_ms = float(masses @ (self._since + missing / rate))

    def count_within(self, response_time_ms: FloatArray) -> FloatArray:
        """Count requests by response time, shape (times,)."""
        wait = np.maximum(response_time_ms[:, None] - self._since, 0.0)
        return np.asarray(pdtrc(self._missing - 1, self._rate * wait) @ self._masses)


class WaitForOne:
    """Requests that wait for a single arrival.

    The chance that it has come has a kink where the time starts, which points would not see: so the
    densities are integrated up to it.
    """

    def __init__(self, rate: float, panels: Panels, weights: FloatArray, time_ms: float) -> None:
        weights = weights.reshape(panels.nodes_ms.shape)
        self._rate, self._time_ms = rate, time_ms
        self._start = panels.edges_ms[0]
        self._all = panels.cumulative(weights)
        self._grown = panels.cumulative(weights * np.exp(rate * (panels.nodes_ms - self._start)))
        self.count = float(self._all.total)
        self.total_response_ms = float(
            panels.integral(weights * panels.nodes_ms) + self.count * (1 / rate + time_ms)
        )

    def count_within(self, response_time_ms: FloatArray) -> FloatArray:
        """Count requests by response time, shape (times,)."""
        age = np.maximum(response_time_ms - self._time_ms, self._start)
        # ∫ w(s) (1 - e^(-λ(a - s))) ds over the ages s up to a.
        waiting = self._grown.at(age) * np.exp(-self._rate * (age - self._start))
        return np.asarray(self._all.at(age) - waiting)


class TimedWait:
    """Queues of one length whose oldest request waits for arrivals or its timer."""

    def __init__(
        self, system: QueueSystem, ages: FloatArray, masses: FloatArray, length: int, start: int
    ) -> None:
        self._rate, self._times = system.arrival_rate, system.batch_times_ms
        self._ages, self._masses = ages, masses
        self._length, self._start = length, start
        self._d = system.max_wait_ms
        self._left = self._d - ages
        missing, younger = start - length, length - 1
        reached = self._arrived(missing, self._left)
        wait = missing / self._rate * self._arrived(missing + 1, self._left)
        count = start * reached
        total = start * reached * self._times[start - 1] + length * wait + ages * reached
        total += younger * ages / 2 * reached + (missing - 1) * wait / 2
        for more in range(missing):
            p = poisson_pmf(more, self._rate * self._left)
            count = count + p * (length + more)
            total = total + p * (
                (length + more) * self._times[length + more - 1]
                + self._d
                + younger * (self._left + ages / 2)
                + more * self._left / 2
            )
        self.count = float(masses @ count)
        self.total_response_ms = float(masses @ total)

    def _arrived(self, number: int, time_ms: FloatArray) -> FloatArray:
        """Probability that `number` requests arrive within a time."""
        if number <= 0:
            return np.asarray((time_ms >= 0).astype(float))
        return np.asarray(pdtrc(number - 1, self._rate * np.maximum(time_ms, 0.0)))

    def _spare(self, number: int, time_ms: FloatArray) -> FloatArray:
        """E[(time - Y)+; Y ≤ left], where Y is the time until `number` arrivals."""
        until = np.minimum(time_ms, self._left)
        value = time_ms * self._arrived(number, until) - number / self._rate * self._arrived(
            number + 1, until
        )
        return np.where(time_ms > 0, value, 0.0)

    def count_within(self, response_time_ms: FloatArray) -> FloatArray:
        """Count requests by response time, shape (times,)."""
        ages, left, missing = self._ages, self._left, self._start - self._length
        younger = self._length - 1
        a = response_time_ms[:, None] - self._times[self._start - 1]
        reached = self._arrived(missing, left)
        until = np.minimum(np.maximum(a, 0.0), left)
        # The arrivals come before the timer: the oldest, the last, those between.
        count = np.where(a >= ages, self._arrived(missing, np.minimum(a - ages, left)), 0.0)
        count += np.where(a >= 0, reached, 0.0)
        if missing > 1:
            # Given Y, they are uniform over it: E[min(a / Y, 1); Y ≤ left].
            between = self._arrived(missing - 1, left) - self._arrived(missing - 1, until)
            count += (missing - 1) * self._arrived(missing, until)
            count += np.maximum(a, 0.0) * self._rate * between
        if younger:
            both = self._spare(missing, a) - self._spare(missing, a - ages)
            count += younger * both / np.maximum(ages, 1e-12)
        for more in range(missing):
            p = poisson_pmf(more, self._rate * left)
            a = response_time_ms[:, None] - self._times[self._length + more - 1]
            count += p * (a >= self._d * (1 - 1e-12))
            count += p * younger * np.clip((a - left) / np.maximum(ages, 1e-12), 0.0, 1.0)
            count += p * more * np.clip(a / left, 0.0, 1.0)
        return np.asarray(count @ self._masses)
