"""A device that serves Poisson arrivals in batches: what every batching policy shares."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import pdtrc

from policy.markov import stationary_with_tail, tail_decay

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

_LOG_TAIL = 32.0
"""Queue lengths of a probability below ``exp(-_LOG_TAIL)`` are left out."""


@dataclass(frozen=True)
class QueueSystem:
    """A device with Poisson arrivals, a queue and a max wait.

    Attributes
    ----------
    arrival_rate : float
        Requests per millisecond, λ.
    batch_times_ms : ndarray of float, shape (max_batch_size,)
        τ: entry ``b - 1`` is the time a batch of ``b`` takes.
    max_wait_ms : float
        d: a free device starts in any case when the oldest request has this age; infinite: never.
    waiting_room : int or None
        Requests that may wait besides those in service. None: any number.
    """

    arrival_rate: float
    batch_times_ms: FloatArray
    max_wait_ms: float
    waiting_room: int | None

    @property
    def max_batch_size(self) -> int:
        """Largest batch size."""
        return int(self.batch_times_ms.size)

    @property
    def full_batch_ms(self) -> float:
        """Time that a batch of the largest size takes."""
        return float(self.batch_times_ms[-1])

    def longest_queue(self) -> int:
        """Return the queue length at a start that is exceeded with a probability near 1e-14."""
        size = self.max_batch_size
        if self.waiting_room is not None:
            return max(self.waiting_room, 1)
        return size + int(np.ceil(_LOG_TAIL / self._decay()))

    def queue_lengths_solved(self, longest: int) -> tuple[int, int]:
        """Return how many queue lengths the equations need to leave from, and to reach.

        Beyond these the probabilities are geometric, so a large system needs no large matrix.
        """
        size = self.max_batch_size
        # The other terms of the tail fall as exp(-length √(2π / B)).
        reached = longest - self.longest_queue() + size
        reached += int(_LOG_TAIL * np.sqrt(size / (2 * np.pi))) + 60
        if self.waiting_room is not None or reached >= longest:
            return longest, longest
        return min(longest, reached + 4 * size), reached

    def stationary(self, transitions: FloatArray, longest: int) -> FloatArray:
        """Return the stationary probabilities of the queue lengths 1 to `longest`.

        Parameters
        ----------
        transitions : ndarray of float, shape (rows, columns)
            As many as `queue_lengths_solved` says; entry ``[m - 1, n - 1]`` leads from m to n.
        longest : int

        Returns
        -------
        ndarray of float, shape (longest,)
        """
        # With a waiting room no queue is beyond the last.
        tail = 0.0 if self.waiting_room is not None else float(np.exp(-self._decay()))
        probabilities = stationary_with_tail(transitions, tail)
        further = tail ** np.arange(1, longest - probabilities.size + 1)
        probabilities = np.append(probabilities, probabilities[-1] * further)
        return np.asarray(probabilities / probabilities.sum())

    def mean_refused(self, left_over: IntArray, batch_times_ms: FloatArray) -> FloatArray:
        """Return the mean number of arrivals refused during a batch.

        Parameters
        ----------
        left_over : ndarray of int, shape (n,)
            Requests that the batch leaves in the queue.
        batch_times_ms : ndarray of float, shape (n,)

        Returns
        -------
        ndarray of float, shape (n,)
        """
        if self.waiting_room is None:
            return np.zeros(left_over.shape)
        room_left = self.waiting_room - left_over
        mean = self.arrival_rate * batch_times_ms
        # E[(N - c)+] for Poisson N of mean μ: μ P(N ≥ c) - c P(N > c).
        at_least = np.where(room_left > 0, pdtrc(np.maximum(room_left - 1, 0), mean), 1.0)
        return np.maximum(mean * at_least - room_left * pdtrc(room_left, mean), 0.0)

    def _decay(self) -> float:
        return tail_decay(self.arrival_rate * self.full_batch_ms, self.max_batch_size)


class EmbeddedChain:
    """The queue length at the starts of batches, as a Markov chain, and what it implies.

    Subclasses compute `probabilities`. Index ``m - 1`` of every array stands for ``m`` requests in
    the queue when a batch starts, those it takes included.

    Attributes
    ----------
    longest : int
        Longest queue at a start that is considered.
    batch_sizes, left_over : ndarray of int, shape (longest,)
        Requests that the batch takes, and that it leaves in the queue.
    batch_times_ms : ndarray of float, shape (longest,)
    probabilities : ndarray of float, shape (longest,)
        Stationary probabilities.
    """

    probabilities: FloatArray

    def __init__(self, system: QueueSystem, longest: int, batch_sizes: IntArray) -> None:
        self._queue = system
        self.longest = longest
        self.batch_sizes = batch_sizes
        self.left_over = np.arange(1, longest + 1) - batch_sizes
        self.batch_times_ms = system.batch_times_ms[batch_sizes - 1]

    @cached_property
    def served_per_start(self) -> float:
        """Mean number of requests that a batch takes."""
        return float(self.probabilities @ self.batch_sizes)

    @cached_property
    def refused_per_start(self) -> float:
        """Mean number of requests refused between two starts."""
        refused = self._queue.mean_refused(self.left_over, self.batch_times_ms)
        return float(self.probabilities @ refused)

    @cached_property
    def ms_per_start(self) -> float:
        """Mean time between two starts."""
        return (self.served_per_start + self.refused_per_start) / self._queue.arrival_rate
