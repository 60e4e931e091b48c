"""Requests that wait at a free device for others to come, counted by response time.

Throughout, λ is the arrival rate per millisecond and P_c(x) the probability that c requests arrive
within x milliseconds: P(Y <= x) for an Erlang(c, λ) time Y. Section 6 of
docs/response_times.md derives the equations; the comments below refer to their numbers.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import pdtrc

from policy.probability import poisson_pmf
from policy.response_time.quadrature import Panels
from policy.response_time.queue_system import QueueSystem

FloatArray = NDArray[np.float64]

# Ages below this (ms) would divide by 0; requests so young are as good as new.
_MIN_AGE_MS = 1e-12


class WaitForArrivals:
    """Requests of given ages whose batch starts when `missing` more have arrived, without a timer.

    Parameters
    ----------
    arrival_rate : float
        Requests per millisecond.
    ages_ms, counts : ndarray of float, shape (n,)
        Ages at the beginning of the wait, and the requests of each age.
    missing : int
        Arrivals waited for, at least 1.
    batch_time_ms : float
        Of the batch that then starts.
    """

    def __init__(
        self,
        arrival_rate: float,
        ages_ms: FloatArray,
        counts: FloatArray,
        missing: int,
        batch_time_ms: float,
    ) -> None:
        self._arrival_rate, self._missing = arrival_rate, missing
        self._without_wait_ms, self._counts = ages_ms + batch_time_ms, counts
        self.count = float(counts.sum())
        mean_wait_ms = missing / arrival_rate
        self.total_response_ms = float(counts @ (self._without_wait_ms + mean_wait_ms))

    def count_within(self, response_time_ms: FloatArray) -> FloatArray:
        """Count the requests with at most each response time, shapes (times,)."""
        wait = np.maximum(response_time_ms[:, None] - self._without_wait_ms, 0.0)
        return np.asarray(pdtrc(self._missing - 1, self._arrival_rate * wait) @ self._counts)


class WaitForNextArrival:
    r"""Requests whose batch starts with the next arrival, without a timer.

    The probability that it has come, :math:`1 - e^{-\lambda(u - s)}` at age :math:`u` of a request
    that was :math:`s` old when the wait began, has a kink at :math:`u = s` that quadrature points
    would miss. So the density :math:`w` of the ages is integrated up to it (equation 17):

    .. math:: \int_0^u w(s)\,(1 - e^{-\lambda (u - s)})\,ds .

    Parameters
    ----------
    arrival_rate : float
        Requests per millisecond.
    panels : Panels
        Of the age at the beginning of the wait.
    density : ndarray of float
        w at the nodes, as many as the panels have.
    batch_time_ms : float
        Of the batch that then starts.
    """

    def __init__(
        self, arrival_rate: float, panels: Panels, density: FloatArray, batch_time_ms: float
    ) -> None:
        density = density.reshape(panels.nodes_ms.shape)
        self._arrival_rate, self._batch_time_ms = arrival_rate, batch_time_ms
        self._first_age_ms = panels.edges_ms[0]
        growth = np.exp(arrival_rate * (panels.nodes_ms - self._first_age_ms))
        self._density = panels.cumulative(density)
        self._density_times_growth = panels.cumulative(density * growth)
        self.count = float(self._density.total)
        self.total_response_ms = float(
            panels.integral(density * panels.nodes_ms)
            + self.count * (1 / arrival_rate + batch_time_ms)
        )

    def count_within(self, response_time_ms: FloatArray) -> FloatArray:
        """Count the requests with at most each response time, shapes (times,)."""
        age = np.maximum(response_time_ms - self._batch_time_ms, self._first_age_ms)
        decay = np.exp(-self._arrival_rate * (age - self._first_age_ms))
        return np.asarray(self._density.at(age) - self._density_times_growth.at(age) * decay)


class WaitForArrivalsOrTimer:
    """All requests of a queue whose oldest waits for arrivals or for its timer.

    At the beginning of the wait, `length` requests wait and the oldest has age a; its timer runs
    off after d - a more milliseconds. If the queue grows to `start` before, at a time Y, a batch of
    `start` begins then; otherwise a batch of all that have come begins when the timer runs off.
    The `length` - 1 requests behind the oldest are taken as uniform over its age.

    Parameters
    ----------
    system : QueueSystem
        Its max wait, d, is finite.
    ages_ms, counts : ndarray of float, shape (n,)
        Ages a < d of the oldest, and how many such queues there are.
    length, start : int
        Queue lengths at the beginning of the wait, at least 1, and at which it ends, above that.
    """

    def __init__(
        self,
        system: QueueSystem,
        ages_ms: FloatArray,
        counts: FloatArray,
        length: int,
        start: int,
    ) -> None:
        self._arrival_rate = system.arrival_rate
        self._batch_times_ms = system.batch_times_ms
        self._max_wait_ms = system.max_wait_ms
        self._ages_ms, self._counts = ages_ms, counts
        self._length, self._start, self._missing = length, start, start - length
        self._left_ms = self._max_wait_ms - ages_ms
        count, total = self._count_and_total()
        self.count = float(counts @ count)
        self.total_response_ms = float(counts @ total)

    def _count_and_total(self) -> tuple[FloatArray, FloatArray]:
        """Return the requests, and the sum of their response times, by age of the oldest (22)."""
        ages, left, missing = self._ages_ms, self._left_ms, self._missing
        younger = self._length - 1
        reached = self._arrived(missing, left)
        # E[Y; Y <= left]
        wait = missing / self._arrival_rate * self._arrived(missing + 1, left)
        count = self._start * reached
        total = self._start * reached * self._batch_times_ms[self._start - 1]
        total = total + self._length * wait + ages * reached
        total += younger * ages / 2 * reached + (missing - 1) * wait / 2
        for more in range(missing):
            size = self._length + more
            probability = poisson_pmf(more, self._arrival_rate * left)
            count = count + probability * size
            total = total + probability * (
                size * self._batch_times_ms[size - 1]
                + self._max_wait_ms
                + younger * (left + ages / 2)
                + more * left / 2
            )
        return count, total

    def count_within(self, response_time_ms: FloatArray) -> FloatArray:
        """Count the requests with at most each response time, shapes (times,)."""
        count = self._count_started_by_arrivals(response_time_ms)
        count += self._count_started_by_timer(response_time_ms)
        return np.asarray(count @ self._counts)

    def _count_started_by_arrivals(self, response_time_ms: FloatArray) -> FloatArray:
        """Count where the arrivals come before the timer runs off, shape (times, ages)."""
        ages, left, missing = self._ages_ms, self._left_ms, self._missing
        younger = self._length - 1
        until_start = response_time_ms[:, None] - self._batch_times_ms[self._start - 1]
        before_timer = np.minimum(np.maximum(until_start, 0.0), left)
        # The oldest (18), and the last to arrive (19).
        oldest = self._arrived(missing, np.minimum(until_start - ages, left))
        count = np.where(until_start >= ages, oldest, 0.0)
        count += np.where(until_start >= 0, self._arrived(missing, left), 0.0)
        if missing > 1:
            # Those between, uniform over Y (20).
            between = self._arrived(missing - 1, left) - self._arrived(missing - 1, before_timer)
            count += (missing - 1) * self._arrived(missing, before_timer)
            count += np.maximum(until_start, 0.0) * self._arrival_rate * between
        if younger:
            # Those behind the oldest, uniform over its age (21).
            spare = self._mean_spare(missing, until_start)
            spare = spare - self._mean_spare(missing, until_start - ages)
            count += younger * spare / np.maximum(ages, _MIN_AGE_MS)
        return count

    def _count_started_by_timer(self, response_time_ms: FloatArray) -> FloatArray:
        """Count where the timer runs off first, shape (times, ages) (23)."""
        ages, left, younger = self._ages_ms, self._left_ms, self._length - 1
        count = np.zeros((response_time_ms.size, ages.size))
        for more in range(self._missing):
            probability = poisson_pmf(more, self._arrival_rate * left)
            batch_time_ms = self._batch_times_ms[self._length + more - 1]
            until_start = response_time_ms[:, None] - batch_time_ms
            count += probability * (until_start >= self._max_wait_ms * (1 - 1e-12))
            uniform_over_age = (until_start - left) / np.maximum(ages, _MIN_AGE_MS)
            count += probability * younger * np.clip(uniform_over_age, 0.0, 1.0)
            count += probability * more * np.clip(until_start / left, 0.0, 1.0)
        return count

    def _arrived(self, number: int, time_ms: FloatArray) -> FloatArray:
        """Return the probability that `number` requests arrive within a time: P_number."""
        if number <= 0:
            return np.asarray((time_ms >= 0).astype(float))
        return np.asarray(pdtrc(number - 1, self._arrival_rate * np.maximum(time_ms, 0.0)))

    def _mean_spare(self, number: int, time_ms: FloatArray) -> FloatArray:
        """Return E[(time - Y)+; Y <= d - a] for Y the time until `number` arrivals."""
        until = np.minimum(time_ms, self._left_ms)
        mean_time = number / self._arrival_rate * self._arrived(number + 1, until)
        value = time_ms * self._arrived(number, until) - mean_time
        return np.where(time_ms > 0, value, 0.0)
