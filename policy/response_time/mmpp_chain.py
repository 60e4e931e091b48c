"""Queue length and state of the arrivals at the starts of batches, under MMPP(2) arrivals.

As in `control_limit_chain`, a device that becomes free while the timer of the oldest request still
runs is corrected for by following the oldest from its arrival on. See section 8 of
docs/response_times.md.
"""

import numpy as np
from numpy.typing import NDArray

from policy.mmpp import Mmpp
from policy.response_time.quadrature import gauss_legendre

FloatArray = NDArray[np.float64]

_POINTS, _WEIGHTS = gauss_legendre(24)


class MmppChain:
    """Queue length and state of the arrivals at the starts of batches.

    Attributes
    ----------
    probabilities : ndarray of float, shape (longest, 2)
        Stationary probabilities; row ``m - 1`` is a queue of ``m``.
    refused_per_start : float
        Requests that find `longest` waiting, per batch.

    Parameters
    ----------
    longest : int
        At most so many wait; a request that finds them is refused.
    """

    def __init__(
        self,
        process: Mmpp,
        batch_times_ms: FloatArray,
        control_limit: int,
        max_wait_ms: float,
        longest: int,
    ) -> None:
        self.process = process
        self.batch_times_ms = batch_times_ms
        self.control_limit = control_limit
        self.max_wait_ms = max_wait_ms
        self.longest = longest
        self.max_batch_size: int = batch_times_ms.size
        self.full_batch_ms = float(batch_times_ms[-1])
        self._at_timer = process.counts(max(control_limit - 1, 0), max_wait_ms)
        self._limit_by_timer = self.limit_reached(np.array(max_wait_ms), self._at_timer)
        transitions = self._transitions().reshape(2 * longest, 2 * longest)
        balance = np.eye(2 * longest) - transitions.T
        balance[-1] = 1.0
        right = np.zeros(2 * longest)
        right[-1] = 1.0
        self.probabilities = np.linalg.solve(balance, right).reshape(longest, 2)
        self.refused_per_start = self._count_refused()

    def _count_refused(self) -> float:
        process, size = self.process, self.max_batch_size
        arrivals = np.arange(process.counts_reached(self.full_batch_ms))
        counts = process.counts(arrivals.size, self.batch_times_ms).sum(axis=-1)  # (size, count, 2)
        left = np.arange(1, self.longest - size + 1)
        of_left = np.maximum(left[:, None] + arrivals - self.longest, 0) @ counts[-1]
        of_empty = np.maximum(arrivals - self.longest, 0) @ counts
        return float(np.sum(self.probabilities * np.concatenate([of_empty, of_left])))

    def limit_reached(self, times_ms: FloatArray, counts: FloatArray) -> FloatArray:
        """Return the probability that the control limit is reached within times of the oldest.

        Parameters
        ----------
        times_ms : ndarray of float, shape (...)
        counts : ndarray of float, shape (..., control_limit - 1, 2, 2)
            P_n(t) at these times.

        Returns
        -------
        ndarray of float, shape (..., 2, 2)
            By the state at the arrival of the oldest, and the state when the limit is reached.
        """
        process = self.process
        mean_time = np.linalg.inv(-process.no_arrivals)
        # The integrals of P_n from 0 to t, one after the other, from the equations of their slopes.
        integral = np.zeros((*times_ms.shape, 2, 2))
        for n in range(self.control_limit - 1):
            before = np.eye(2) if n == 0 else integral @ process.arrivals
            integral = (before - counts[..., n, :, :]) @ mean_time
        return np.asarray(integral @ process.arrivals)

    def _transitions(self) -> FloatArray:
        """Return the transition probabilities, shape (longest, 2, longest, 2)."""
        process, limit, size = self.process, self.control_limit, self.max_batch_size
        times, longest = self.batch_times_ms, self.longest
        rows = np.zeros((longest, 2, longest, 2))
        reached = min(longest, process.counts_reached(self.full_batch_ms))
        at_end = process.counts(reached, times)  # (size, count, 2, 2)
        rows[:size, :, : reached - 1] = at_end[:, 1:].transpose(0, 2, 1, 3)
        for left in range(1, longest - size + 1):
            count = min(reached, longest - left + 1)
            rows[size + left - 1, :, left - 1 : left - 1 + count] = at_end[-1, :count].transpose(
                1, 0, 2
            )
        # What is missing would make the queue longer than the longest.
        missing = process.states_after(times)[np.minimum(np.arange(longest), size - 1)]
        missing[:size] -= at_end[:, 0]
        rows[:, :, -1] += np.maximum(0.0, missing - rows.sum(axis=2))
        # The device is free and nobody waits: the next arrival is the oldest.
        first = at_end[:, 0] @ process.next_arrival
        if limit == 1:
            rows[:size, :, 0] += first
        else:
            rows[:size, :, : limit - 1] += np.einsum("mij,njk->mink", first, self._at_timer)
            rows[:size, :, limit - 1] += first @ self._limit_by_timer
            self._correct_running_timers(rows)
        # But for rounding these are 1.
        rows /= rows.sum(axis=(2, 3), keepdims=True)
        return rows

    def _correct_running_timers(self, rows: FloatArray) -> None:
        """Account for batch ends at which the timer of the oldest still runs.

        The oldest arrived when `r` was left of its batch, with whole full batches before it; behind
        it are those that came since. `rows` has the device start at once.
        """
        process, limit, size = self.process, self.control_limit, self.max_batch_size
        d, full_ms, times = self.max_wait_ms, self.full_batch_ms, self.batch_times_ms
        i = 0
        while i * full_ms < d and i * size < self.longest:
            ends = np.minimum(times, d - i * full_ms)
            r = ends[:, None] * _POINTS
            age = r + i * full_ms
            at_end = process.counts(limit - 1, age)
            less = self._at_timer - at_end  # (size, points, limit - 1, 2, 2)
            reach = self._limit_by_timer - self.limit_reached(age, at_end)
            weights = ends[:, None, None, None] * _WEIGHTS[:, None, None]
            before = process.counts(i * size + 1, times[:, None] - r) @ process.arrivals
            of_row = weights * before[:, :, i * size]
            rows[:size, :, : limit - 1] += np.einsum("mgij,mgnjk->mink", of_row, less)
            rows[:size, :, limit - 1] += np.einsum("mgij,mgjk->mik", of_row, reach)
            left = np.arange(1, min(i * size, self.longest - size) + 1)
            if left.size:
                of_left = weights[-1][:, None] * before[-1][:, i * size - left]
                rows[size + left - 1, :, : limit - 1] += np.einsum(
                    "glij,gnjk->link", of_left, less[-1]
                )
                rows[size + left - 1, :, limit - 1] += np.einsum(
                    "glij,gjk->lik", of_left, reach[-1]
                )
            i += 1
