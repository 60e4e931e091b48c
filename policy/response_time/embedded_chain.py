"""The queue length at the starts of batches, as a Markov chain, under a control limit.

A start finds ``m`` requests in the queue and takes ``min(m, B)`` of them. Where nobody is left
over, what happens until the next start depends on the batch time alone. Where some are left over,
the timer of the oldest of them matters too: its age follows from the batch it arrived in, so the
chain stays linear (`_timer_correction`).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import gammaln, pdtrc

FloatArray = NDArray[np.float64]

_LOG_TAIL = 32.0
"""Queue lengths of a probability below ``exp(-_LOG_TAIL)`` are left out."""
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(24)


def poisson_pmf(count: ArrayLike, mean: ArrayLike) -> FloatArray:
    """Poisson probabilities; 0 for negative counts."""
    n, mu = np.asarray(count, dtype=float), np.asarray(mean, dtype=float)
    whole = np.maximum(n, 0.0)
    # A mean of 0 has log -690: no count but 0 is left of it.
    pmf = np.exp(whole * np.log(np.maximum(mu, 1e-300)) - mu - gammaln(whole + 1))
    return np.where(n < 0, 0.0, pmf) if np.any(n < 0) else np.asarray(pmf)


def poisson_table(length: int, means: ArrayLike) -> FloatArray:
    """Poisson probabilities of the counts below `length`, shape (means.shape, length)."""
    mu = np.asarray(means, dtype=float)
    # n log μ - μ - log n!, as a product of matrices: the table is written but twice.
    factors = np.empty((*mu.shape, 3))
    factors[..., 0] = np.log(np.maximum(mu, 1e-300))
    factors[..., 1] = mu
    factors[..., 2] = 1.0
    table = factors @ _exponents(length)
    return np.asarray(np.exp(table, out=table))


@lru_cache(maxsize=256)
def _exponents(length: int) -> FloatArray:
    n = np.arange(length)
    return np.stack([n, -np.ones(length), -gammaln(n + 1)])


@dataclass(frozen=True)
class QueueSystem:
    """A device with Poisson arrivals.

    Attributes
    ----------
    arrival_rate : float
        Requests per millisecond.
    batch_times_ms : ndarray of float, shape (max_batch_size,)
        Time a batch takes.
    max_wait_ms : float
        Age of the oldest request at which a free device starts in any case; infinite: never.
    waiting_room : int or None
        Requests that may wait besides those in service.
    """

    arrival_rate: float
    batch_times_ms: FloatArray
    max_wait_ms: float
    waiting_room: int | None

    @property
    def max_batch_size(self) -> int:
        """Largest batch size."""
        return int(self.batch_times_ms.size)

    def longest_queue(self) -> int:
        """Queue length at a start that is all but never exceeded."""
        size = self.max_batch_size
        if self.waiting_room is not None:
            return max(self.waiting_room, 1)
        return size + int(np.ceil(_LOG_TAIL / self.decay()))

    def decay(self) -> float:
        """Rate at which long queues get less likely: exp(-decay) from one length to the next.

        The root of λτ (e^x - 1) = B x, with λτ the arrivals in a full batch (Cramér and Lundberg).
        """
        return _decay(self.arrival_rate * float(self.batch_times_ms[-1]), self.max_batch_size)

    def tail(self) -> float:
        """Factor from the probability of a long queue to that of the next; 0 with a room."""
        return 0.0 if self.waiting_room is not None else float(np.exp(-self.decay()))

    def solved(self, longest: int) -> tuple[int, int]:
        """Queue lengths to start from, and to reach, in the equations; the tail is geometric."""
        size = self.max_batch_size
        # What else there is in the tail falls as exp(-length √(2π / B)).
        reached = longest - self.longest_queue() + size
        reached += int(_LOG_TAIL * np.sqrt(size / (2 * np.pi))) + 60
        if self.waiting_room is not None or reached >= longest:
            return longest, longest
        return min(longest, reached + 4 * size), reached

    def extended(self, probabilities: FloatArray, longest: int) -> FloatArray:
        """Extend probabilities by their tail, up to the longest queue."""
        further = self.tail() ** np.arange(1, longest - probabilities.size + 1)
        probabilities = np.append(probabilities, probabilities[-1] * further)
        return np.asarray(probabilities / probabilities.sum())

    def mean_refused(self, left_over: NDArray[np.intp], batch_times_ms: FloatArray) -> FloatArray:
        """Arrivals refused during batches that leave some over, on average, same shape."""
        if self.waiting_room is None:
            return np.zeros(left_over.shape)
        room_left = self.waiting_room - left_over
        mean = self.arrival_rate * batch_times_ms
        # E[(N - c)+] for Poisson N of mean μ: μ P(N ≥ c) - c P(N > c).
        at_least = np.where(room_left > 0, pdtrc(np.maximum(room_left - 1, 0), mean), 1.0)
        return np.maximum(mean * at_least - room_left * pdtrc(room_left, mean), 0.0)


@lru_cache(maxsize=64)
def _decay(mean: float, size: int) -> float:
    """Find the root of mean · (e^x - 1) = size · x above 0."""
    high = 1.0
    while mean * math.expm1(high) <= size * high:
        high *= 2
    low = high / 2
    while mean * math.expm1(low) >= size * low:
        low /= 2
    return float(brentq(lambda x: mean * math.expm1(x) - size * x, low, high))


def stationary(transitions: FloatArray, tail: float = 0.0) -> FloatArray:
    """Stationary probabilities of a Markov chain.

    Parameters
    ----------
    transitions : ndarray, shape (rows, states)
        Transition probabilities. Where there are more rows than states, those are of states beyond
        the last, whose probabilities fall geometrically.
    tail : float
        Factor from the probability of one of these to the next.
    """
    rows, count = transitions.shape
    beyond = tail ** np.arange(1, rows - count + 1)
    # One balance equation is redundant: normalisation stands in its place.
    balance = np.eye(count) - transitions[:count].T
    balance[:, -1] -= beyond @ transitions[count:]
    balance[0] = 1.0
    balance[0, -1] = 1 / (1 - tail)
    one = np.zeros(count)
    one[0] = 1.0
    solution = np.linalg.solve(balance, one)
    solution = np.append(solution, solution[-1] * beyond)
    solution[solution < 0] = 0.0  # rounding, far out
    return np.asarray(solution / solution.sum())


@dataclass(frozen=True)
class ControlLimitSystem(QueueSystem):
    """A device under a control limit and a max wait, with Poisson arrivals.

    Attributes
    ----------
    control_limit : int
        Queue length at which a free device starts.
    """

    control_limit: int

    def room_is_simple(self) -> bool:
        """Whether nobody is refused while the oldest has fewer behind it than the limit.

        It is so where the queue that full batches leave of a full room is longer than the limit,
        or where a batch takes all the room. Then behind the oldest of a short queue wait all that
        came since.
        """
        room, size = self.waiting_room, self.max_batch_size
        return not room or room <= size or (room - 1) % size + 1 >= self.control_limit

    def followers(
        self, count: int, residual_ms: FloatArray, passed: int, position: int
    ) -> FloatArray:
        """Probabilities that 0 to `count` - 1 requests wait behind one in the queue.

        It arrived `residual_ms` before the end of a batch, at position ``position +
        passed·B``, and `passed` full batches have followed.

        Returns
        -------
        ndarray, shape (residual_ms.shape, count)
        """
        n = np.arange(count)
        later = self.arrival_rate * passed * float(self.batch_times_ms[-1])
        early = self.arrival_rate * np.asarray(residual_ms)
        room = None if self.waiting_room is None else self.waiting_room - position
        if room is not None:
            room -= passed * self.max_batch_size
        if room is None or room >= count:
            return poisson_table(count, early + later)
        # Only those who find room while the request still waits for its first batch end come in.
        accepted = poisson_table(room + 1, early)
        accepted[..., room] = np.maximum(0.0, 1.0 - accepted[..., :room].sum(axis=-1))
        return np.asarray(accepted @ poisson_pmf(n - np.arange(room + 1)[:, None], later))


class StartChain:
    """Stationary probabilities of the queue length at the starts of batches.

    Attributes
    ----------
    probabilities : ndarray of float, shape (longest queue,)
        Entry ``m - 1``: ``m`` requests wait when a batch starts, those it takes included.
    served_per_start, refused_per_start : float
        Requests taken by a batch, and refused between two starts, on average.
    """

    def __init__(self, system: ControlLimitSystem) -> None:
        self.system = system
        size = system.max_batch_size
        self.longest = system.longest_queue()
        self.queue_lengths = np.arange(1, self.longest + 1)
        self.batch_sizes = np.minimum(self.queue_lengths, size)
        self.left_over = self.queue_lengths - self.batch_sizes
        self.batch_times_ms = system.batch_times_ms[self.batch_sizes - 1]
        rows, reached = system.solved(self.longest)
        self.probabilities = system.extended(
            stationary(self._transitions(rows, reached), system.tail()), self.longest
        )
        self.served_per_start = float(self.probabilities @ self.batch_sizes)
        refused = system.mean_refused(self.left_over, self.batch_times_ms)
        self.refused_per_start = float(self.probabilities @ refused)
        self.ms_per_start = (self.served_per_start + self.refused_per_start) / system.arrival_rate

    def _transitions(self, longest: int, reached: int) -> FloatArray:
        """Probabilities from queue length to queue length, shape (longest, reached)."""
        system = self.system
        size, limit = system.max_batch_size, system.control_limit
        alone = min(size, longest)
        room = reached if system.waiting_room is None else system.waiting_room
        mean = system.arrival_rate * system.batch_times_ms[:alone]
        # Waiting requests at the end of the batch, 0 to room; those beyond the room are refused.
        waiting = np.zeros((longest, room + 1))
        waiting[:alone] = poisson_table(room + 1, mean)
        for left in range(1, min(longest - size, room) + 1):
            waiting[size - 1 + left, left:] = waiting[size - 1, : room + 1 - left]
        if reached == longest:
            waiting[:, room] = np.maximum(0.0, 1.0 - waiting[:, :room].sum(axis=1))

        transitions = np.zeros((longest, reached))
        start = max(limit, 1)
        if room:
            transitions[:, start - 1 :] = waiting[:, start:]
        short = waiting[:, :start]
        if np.isinf(system.max_wait_ms) or limit == 1:
            transitions[:, start - 1] += short.sum(axis=1)
            return transitions
        d = system.max_wait_ms
        n = np.arange(1, limit)
        times = system.batch_times_ms[:alone, None]
        # All of n arrivals are younger than d with probability (d / batch time)^n.
        transitions[:alone, : limit - 1] += short[:alone, 1:] * (
            1 - np.minimum(1.0, d / times) ** n
        )
        # Nobody has come up to d before the end: the oldest is younger, and the timer still runs.
        none_older = np.exp(-system.arrival_rate * np.maximum(times - d, 0.0))
        transitions[:alone, : limit - 1] += none_older * poisson_table(
            limit - 1, system.arrival_rate * d
        )
        transitions[:alone, limit - 1] += 1 - transitions[:alone].sum(axis=1)
        # Provisionally, whoever is left over has waited long enough.
        transitions[alone:, : limit - 1] += short[alone:, 1:]
        self._timer_correction(transitions)
        return transitions

    def _timer_correction(self, transitions: FloatArray) -> None:
        """Account for the requests left over whose timer still runs at the end of the next batch.

        The oldest one waiting at the end of a batch may have arrived ``i`` batches before, as
        number ``1 + i·B`` of the queue. Then exactly the requests since its arrival wait behind
        it, a fresh Poisson count. So its probability is booked on the start of the batch in which
        it arrived: in the long run it does not matter with which start one books.
        """
        system = self.system
        size, limit, d = system.max_batch_size, system.control_limit, system.max_wait_ms
        rate, full_ms = system.arrival_rate, float(system.batch_times_ms[-1])
        timer = poisson_table(limit - 1, rate * d)
        passed = 1
        rows = transitions.shape[0]
        times, left_over = self.batch_times_ms[:rows], self.left_over[:rows]
        while passed * full_ms < d and passed * size < rows:
            # Most rows have the same end: what depends on it alone is found once.
            ends, of_row = np.unique(np.minimum(times, d - passed * full_ms), return_inverse=True)
            residual = ends[:, None] * (_POINTS + 1) / 2
            behind = poisson_table(limit - 1, rate * (passed * full_ms + residual))[of_row]
            weight = (
                (ends[of_row, None] * _WEIGHTS / 2)
                * rate
                * poisson_pmf(
                    passed * size - left_over[:, None],
                    rate * (times[:, None] - residual[of_row]),
                )
            )
            transitions[:, : limit - 1] -= np.einsum("mg,mgn->mn", weight, behind)
            transitions[:, : limit - 1] += weight.sum(axis=1)[:, None] * timer
            sooner = behind.sum(axis=-1) - timer.sum()
            transitions[:, limit - 1] += np.sum(weight * sooner, axis=1)
            passed += 1
