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
    def repeated_batch_size(self) -> int:
        """Batch size that every queue of at least `settled_length` starts."""
        return self.max_batch_size

    @property
    def repeated_batch_ms(self) -> float:
        """Time that such a batch takes."""
        return float(self.batch_times_ms[self.repeated_batch_size - 1])

    @property
    def settled_length(self) -> int:
        """Queue length from which on all batches have the `repeated_batch_size`."""
        return self.max_batch_size

    @property
    def tail_ratio(self) -> float:
        """Ratio of the probabilities of two successive long queues; 0 with a waiting room."""
        return 0.0 if self.waiting_room is not None else float(np.exp(-self.tail_decay))

    @property
    def tail_decay(self) -> float:
        """The negative logarithm of `tail_ratio`; only without a waiting room."""
        return tail_decay(self.arrival_rate * self.repeated_batch_ms, self.repeated_batch_size)

    def max_arrivals(self) -> int:
        """Return the number of arrivals in a batch that is exceeded with a negligible chance."""
        mean = self.arrival_rate * float(self.batch_times_ms[-1])
        return int(mean + 7 * np.sqrt(mean) + 12)

    def longest_queue(self) -> int:
        """Return the queue length at a start that is exceeded with a probability near 1e-14."""
        if self.waiting_room is not None:
            return max(self.waiting_room, 1)
        return self.max_batch_size + int(np.ceil(_LOG_TAIL / self.tail_decay))

    def queue_lengths_solved(self) -> tuple[int, int, int]:
        """Return how many queue lengths the equations leave from and reach, and how many to keep.

        Beyond those reached the probabilities are geometric, so a large system needs no large
        matrix. Those kept hold a whole batch of positions in the queue to which the geometric part
        alone contributes: `ArrivalsInBatch` repeats it.
        """
        longest = self.longest_queue()
        size = self.repeated_batch_size
        reached = self.settled_length
        if size < self.max_batch_size:  # a larger batch may last longer than it serves
            reached += self.max_arrivals()
        # The other terms of the tail fall as exp(-length √(2π / b)).
        reached += int(_LOG_TAIL * np.sqrt(size / (2 * np.pi))) + 60
        if self.waiting_room is not None or reached >= longest:
            return longest, longest, longest
        rows = min(longest, reached + 4 * self.max_batch_size)
        kept = rows + self.max_arrivals() + 3 * size + 2 * self.settled_length
        return rows, reached, min(longest, kept)

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


class EmbeddedChain:
    """The queue length at the starts of batches, as a Markov chain, and what it implies.

    Subclasses call `solve`. Index ``m - 1`` of every array stands for ``m`` requests in the queue
    when a batch starts, those it takes included.

    Attributes
    ----------
    longest : int
        Longest queue at a start that is listed.
    batch_sizes, left_over : ndarray of int, shape (longest,)
        Requests that the batch takes, and that it leaves in the queue.
    batch_times_ms : ndarray of float, shape (longest,)
    probabilities : ndarray of float, shape (longest,)
        Stationary probabilities.
    probability_beyond : float
        That of all longer queues. They start the repeated batch, and each length is less probable
        than the one before by the factor `QueueSystem.tail_ratio`.
    """

    probabilities: FloatArray
    probability_beyond: float

    def __init__(self, system: QueueSystem, longest: int, batch_sizes: IntArray) -> None:
        self._queue = system
        self.longest = longest
        self.batch_sizes = batch_sizes
        self.left_over = np.arange(1, longest + 1) - batch_sizes
        self.batch_times_ms = system.batch_times_ms[batch_sizes - 1]

    def solve(self, transitions: FloatArray) -> None:
        """Compute the stationary probabilities.

        Parameters
        ----------
        transitions : ndarray of float, shape (rows, columns)
            As many as `queue_lengths_solved` says; entry ``[m - 1, n - 1]`` leads from m to n.
        """
        tail = self._queue.tail_ratio
        probabilities = stationary_with_tail(transitions, tail)
        further = tail ** np.arange(1, self.longest - probabilities.size + 1)
        probabilities = np.append(probabilities, probabilities[-1] * further)
        beyond = 0.0
        if self.longest < self._queue.longest_queue():
            beyond = float(probabilities[-1]) * tail / -np.expm1(-self._queue.tail_decay)
        total = probabilities.sum() + beyond
        self.probabilities = probabilities / total
        self.probability_beyond = float(beyond / total)

    @property
    def complete_blocks(self) -> int:
        """Blocks of a whole repeated batch of positions to which all `probabilities` contribute.

        If the queue may be longer than listed, the last of them holds a geometric part only.
        Without longer queues there is no such bound: more blocks than positions.
        """
        size = self._queue.repeated_batch_size
        if self.probability_beyond == 0:
            return self.longest + 1
        return (self.longest - size + 1) // size

    @cached_property
    def size_probabilities(self) -> FloatArray:
        """Fraction of the batches by their size, from 0 on, shape (max_batch_size + 1,)."""
        found = np.zeros(self._queue.max_batch_size + 1)
        np.add.at(found, self.batch_sizes, self.probabilities)
        found[self._queue.repeated_batch_size] += self.probability_beyond
        return found

    @cached_property
    def served_per_start(self) -> float:
        """Mean number of requests that a batch takes."""
        return float(self.size_probabilities @ np.arange(self._queue.max_batch_size + 1))

    @cached_property
    def refused_per_start(self) -> float:
        """Mean number of requests refused between two starts."""
        refused = self._queue.mean_refused(self.left_over, self.batch_times_ms)
        return float(self.probabilities @ refused)

    @cached_property
    def ms_per_start(self) -> float:
        """Mean time between two starts."""
        return (self.served_per_start + self.refused_per_start) / self._queue.arrival_rate
