r"""The queue length at the starts of batches, under a control limit and a max wait.

A start finds :math:`m` requests in the queue and takes :math:`\min(m, B)`. If it leaves nobody,
what happens until the next start depends on the batch time alone. If it leaves some, the timer of
the oldest of them matters too. Its age follows from the batch in which it arrived, so the equations
stay linear (`ControlLimitChain._correct_running_timers`). Sections 2 and 3 of
docs/policy.md derive them.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import pdtrc

from policy.numerics.markov import stationary_with_tail, tail_decay
from policy.numerics.probability import poisson_pmf, poisson_table
from policy.numerics.quadrature import gauss_legendre

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

_POINTS, _WEIGHTS = gauss_legendre(24)
_LOG_TAIL = 32.0
"""Queue lengths of a probability below ``exp(-_LOG_TAIL)`` are left out."""


@dataclass(frozen=True)
class ControlLimitQueue:
    """A device under a control limit and a max wait, with Poisson arrivals.

    Attributes
    ----------
    arrival_rate : float
        Requests per millisecond, λ.
    batch_times_ms : ndarray of float, shape (max_batch_size,)
        τ: entry ``b - 1`` is the time a batch of ``b`` takes.
    max_wait_ms : float
        d: a free device starts in any case when the oldest request has this age; infinite: never.
    max_queue_rows : int or None
        Requests that may wait besides those in service. None: any number.
    control_limit : int
        L: the queue length at which a free device starts.
    """

    arrival_rate: float
    batch_times_ms: FloatArray
    max_wait_ms: float
    max_queue_rows: int | None
    control_limit: int

    @property
    def max_batch_size(self) -> int:
        return int(self.batch_times_ms.size)

    @property
    def full_batch_ms(self) -> float:
        return float(self.batch_times_ms[-1])

    @cached_property
    def tail_decay(self) -> float:
        """Minus the logarithm of `tail_ratio`; only without a waiting room."""
        return tail_decay(self.arrival_rate * self.full_batch_ms, self.max_batch_size)

    @property
    def tail_ratio(self) -> float:
        """Ratio of the probabilities of two successive long queues; 0 with a waiting room."""
        return 0.0 if self.max_queue_rows is not None else float(np.exp(-self.tail_decay))

    def longest_queue(self) -> int:
        """Return the queue length at a start that is exceeded with a probability near 1e-14."""
        if self.max_queue_rows is not None:
            return max(self.max_queue_rows, 1)
        return self.max_batch_size + int(np.ceil(_LOG_TAIL / self.tail_decay))

    def queue_lengths_solved(self) -> tuple[int, int, int]:
        """Return how many queue lengths the equations leave from and reach, and how many to keep.

        Beyond those reached the probabilities are geometric, so a large system needs no large
        matrix. Those kept hold a whole batch of positions in the queue to which the geometric part
        alone contributes: the response times repeat it.
        """
        longest, size = self.longest_queue(), self.max_batch_size
        # The other terms of the tail fall as exp(-length √(2π / b)).
        reached = size + int(_LOG_TAIL * np.sqrt(size / (2 * np.pi))) + 60
        if self.max_queue_rows is not None or reached >= longest:
            return longest, longest, longest
        rows = min(longest, reached + 4 * size)
        mean = self.arrival_rate * self.full_batch_ms
        most_arrivals = int(mean + 7 * np.sqrt(mean) + 12)
        return rows, reached, min(longest, rows + most_arrivals + 5 * size)

    def mean_refused(self, left_over: IntArray, batch_times_ms: FloatArray) -> FloatArray:
        """Return the mean number of arrivals refused during a batch that leaves some over.

        The arrays have shape (n,), as the result.
        """
        if self.max_queue_rows is None:
            return np.zeros(left_over.shape)
        room_left = self.max_queue_rows - left_over
        mean = self.arrival_rate * batch_times_ms
        # E[(N - c)+] for Poisson N of mean μ: μ P(N ≥ c) - c P(N > c).
        at_least = np.where(room_left > 0, pdtrc(np.maximum(room_left - 1, 0), mean), 1.0)
        return np.maximum(mean * at_least - room_left * pdtrc(room_left, mean), 0.0)

    def refuses_none_below_limit(self) -> bool:
        """Return whether no request is refused while fewer than the limit are behind the oldest.

        That is so where full batches shorten a full room to a queue of at least the limit, or
        where one batch takes the whole room. Then all that came since its arrival wait behind the
        oldest request of a short queue, a Poisson number.
        """
        room, size = self.max_queue_rows, self.max_batch_size
        return not room or room <= size or (room - 1) % size + 1 >= self.control_limit

    def followers(
        self, count: int, residual_ms: FloatArray, full_batches: int, position: int
    ) -> FloatArray:
        """Return the probabilities that 0 to `count` - 1 requests wait behind one in the queue.

        That one arrived `residual_ms`, shape (n,), before the end of a batch. Since then, so many
        `full_batches` have been served, and it is now at a `position` in the queue, from 1.
        """
        later = self.arrival_rate * full_batches * self.full_batch_ms
        early = self.arrival_rate * np.asarray(residual_ms)
        room = None if self.max_queue_rows is None else self.max_queue_rows - position
        if room is not None:
            room -= full_batches * self.max_batch_size
        if room is None or room >= count:
            return poisson_table(count, early + later)
        # Until its first batch end only as many come in as find room; later there is room enough.
        accepted = poisson_table(room + 1, early)
        accepted[..., room] = np.maximum(0.0, 1.0 - accepted[..., :room].sum(axis=-1))
        more = np.arange(count) - np.arange(room + 1)[:, None]
        return np.asarray(accepted @ poisson_pmf(more, later))


class ControlLimitChain:
    """The queue length at the starts of batches, as a Markov chain, and what it implies.

    Index ``m - 1`` of every array stands for ``m`` requests in the queue when a batch starts, those
    it takes included.

    Attributes
    ----------
    longest : int
        Longest queue at a start that is listed.
    batch_sizes, left_over : ndarray of int, shape (longest,)
        Requests that the batch takes, and that it leaves in the queue.
    probabilities : ndarray of float, shape (longest,)
        Stationary probabilities.
    probability_beyond : float
        That of all longer queues. They start full batches, and each length is less probable than
        the one before by the factor `ControlLimitQueue.tail_ratio`.
    """

    def __init__(self, system: ControlLimitQueue) -> None:
        self.system = system
        rows, columns, self.longest = system.queue_lengths_solved()
        lengths = np.arange(1, self.longest + 1)
        self.batch_sizes = np.minimum(lengths, system.max_batch_size)
        self.left_over = lengths - self.batch_sizes
        self.batch_times_ms = system.batch_times_ms[self.batch_sizes - 1]
        tail = system.tail_ratio
        solved = stationary_with_tail(self._transitions(rows, columns), tail)
        further = tail ** np.arange(1, self.longest - solved.size + 1)
        probabilities = np.append(solved, solved[-1] * further)
        beyond = 0.0
        if self.longest < system.longest_queue():
            beyond = float(probabilities[-1]) * tail / -np.expm1(-system.tail_decay)
        total = probabilities.sum() + beyond
        self.probabilities: FloatArray = probabilities / total
        self.probability_beyond = float(beyond / total)

    @property
    def complete_blocks(self) -> int:
        """Blocks of a whole batch of positions to which all `probabilities` contribute.

        If the queue may be longer than listed, the last of them holds a geometric part only.
        Without longer queues there is no such bound: more blocks than positions.
        """
        size = self.system.max_batch_size
        if self.probability_beyond == 0:
            return self.longest + 1
        return (self.longest - size + 1) // size

    @cached_property
    def size_probabilities(self) -> FloatArray:
        """Fraction of the batches by their size, from 0 on, shape (max_batch_size + 1,)."""
        found = np.zeros(self.system.max_batch_size + 1)
        np.add.at(found, self.batch_sizes, self.probabilities)
        found[-1] += self.probability_beyond
        return found

    @cached_property
    def served_per_start(self) -> float:
        return float(self.size_probabilities @ np.arange(self.system.max_batch_size + 1))

    @cached_property
    def refused_per_start(self) -> float:
        refused = self.system.mean_refused(self.left_over, self.batch_times_ms)
        return float(self.probabilities @ refused)

    @cached_property
    def ms_per_start(self) -> float:
        return (self.served_per_start + self.refused_per_start) / self.system.arrival_rate

    def _transitions(self, rows: int, columns: int) -> FloatArray:
        """Return the transition probabilities, shape (rows, columns), of equations (2) to (6)."""
        system = self.system
        limit, d = system.control_limit, system.max_wait_ms
        at_end = self._queue_at_batch_end(rows, columns)
        transitions = np.zeros((rows, columns))
        # A queue of at least the limit starts at once (2).
        if at_end.shape[1] > 1:
            transitions[:, limit - 1 :] = at_end[:, limit:]
        short = at_end[:, :limit]
        if np.isinf(d) or limit == 1:
            transitions[:, limit - 1] += short.sum(axis=1)  # (3)
            return transitions
        alone = min(system.max_batch_size, rows)  # up to here a batch leaves nobody
        times = system.batch_times_ms[:alone, None]
        # The timer of the oldest has run off during the batch (4).
        expired = 1 - np.minimum(1.0, d / times) ** np.arange(1, limit)
        transitions[:alone, : limit - 1] += short[:alone, 1:] * expired
        # The timer has yet to run off (5).
        not_yet = np.exp(-system.arrival_rate * np.maximum(times - d, 0.0))
        transitions[:alone, : limit - 1] += not_yet * poisson_table(
            limit - 1, system.arrival_rate * d
        )
        transitions[:alone, limit - 1] += 1 - transitions[:alone].sum(axis=1)
        # Provisionally, the timer of a request left over has run off (6).
        transitions[alone:, : limit - 1] += short[alone:, 1:]
        self._correct_running_timers(transitions)
        return transitions

    def _queue_at_batch_end(self, rows: int, columns: int) -> FloatArray:
        """Return the probabilities of the queue length at a batch's end, from 0 on (1).

        Shape (rows, columns + 1), or (rows, max_queue_rows + 1); those refused are not counted.
        """
        system = self.system
        size = system.max_batch_size
        alone = min(size, rows)
        room = columns if system.max_queue_rows is None else system.max_queue_rows
        mean = system.arrival_rate * system.batch_times_ms[:alone]
        at_end = np.zeros((rows, room + 1))
        at_end[:alone] = poisson_table(room + 1, mean)
        for left in range(1, min(rows - size, room) + 1):
            at_end[size - 1 + left, left:] = at_end[size - 1, : room + 1 - left]
        if columns == rows:
            at_end[:, room] = np.maximum(0.0, 1.0 - at_end[:, :room].sum(axis=1))
        return at_end

    def _correct_running_timers(self, transitions: FloatArray) -> None:
        """Account for requests left over whose timer still runs when they are the oldest (7).

        The oldest request at the end of a batch may have arrived ``i`` batches before, at position
        ``1 + iB`` of the queue. Behind it wait exactly the requests that came since, a Poisson
        number. The correction is booked on the start of the batch in which it arrived, not on the
        start before it became the oldest: both happen equally often, so the stationary
        probabilities are the same.
        """
        system = self.system
        size, limit, d = system.max_batch_size, system.control_limit, system.max_wait_ms
        rate, full_ms = system.arrival_rate, system.full_batch_ms
        at_timer = poisson_table(limit - 1, rate * d)
        rows = transitions.shape[0]
        times, left_over = self.batch_times_ms[:rows], self.left_over[:rows]
        i = 1
        while i * full_ms < d and i * size < rows:
            # Most rows integrate up to the same time: what depends on it alone is computed once.
            ends, of_row = np.unique(np.minimum(times, d - i * full_ms), return_inverse=True)
            residual = ends[:, None] * _POINTS
            at_batch_end = poisson_table(limit - 1, rate * (i * full_ms + residual))[of_row]
            before_it = poisson_pmf(
                i * size - left_over[:, None], rate * (times[:, None] - residual[of_row])
            )
            weight = (ends[of_row, None] * _WEIGHTS) * rate * before_it
            transitions[:, : limit - 1] -= np.einsum("mg,mgn->mn", weight, at_batch_end)
            transitions[:, : limit - 1] += weight.sum(axis=1)[:, None] * at_timer
            reaches_limit = at_batch_end.sum(axis=-1) - at_timer.sum()
            transitions[:, limit - 1] += np.sum(weight * reaches_limit, axis=1)
            i += 1
