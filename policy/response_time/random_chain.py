r"""The queue length at the starts of batches, under a control limit, where batch times vary.

The time of a batch is independent of everything but its size. Time is a lattice of equal steps, on
which the distribution of each batch time is split so that its mean is kept. The equations are those
of `control_limit_chain`, averaged over the batch times (docs/response_times.md, section 8).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.optimize import brentq

from policy.latency_quantiles import LatencyQuantiles
from policy.markov import stationary_with_tail
from policy.probability import poisson_table

FloatArray = NDArray[np.float64]

_LOG_TAIL = 32.0
"""Queue lengths of a probability below ``exp(-_LOG_TAIL)`` are left out."""
_NEGLIGIBLE = 1e-13
_TINY_MS = 1e-300

# A step is at most this many mean times between arrivals, and this share of a typical batch.
_MAX_STEP_IN_ARRIVALS, _MAX_STEP_IN_BATCHES = 0.25, 1 / 50
# A search takes steps this many times as long: percentiles are then up to 0.3% too high, and what
# is late at most 1.5%, for a third of the time.
_COARSE = 3.0


@dataclass(frozen=True, eq=False)
class RandomTimesQueue:
    """A device under a control limit and a max wait, with batch times that vary.

    Attributes
    ----------
    arrival_rate : float
        Requests per millisecond, λ.
    mean_times_ms : ndarray of float, shape (max_batch_size,)
        Entry ``b - 1`` is the mean time of a batch of ``b``.
    max_wait_ms : float
        d: a free device starts in any case when the oldest request has this age; infinite: never.
    waiting_room : int or None
        Requests that may wait besides those in service. None: any number.
    control_limit : int
        L: the queue length at which a free device starts.
    step_ms : float
        Step of the lattice of times.
    time_probabilities : ndarray of float, shape (max_batch_size, nodes)
        Entry ``[b - 1, n]``: probability that a batch of ``b`` takes ``n`` steps.
    """

    arrival_rate: float
    mean_times_ms: FloatArray
    max_wait_ms: float
    waiting_room: int | None
    control_limit: int
    step_ms: float
    time_probabilities: FloatArray

    @classmethod
    def on_lattice(
        cls,
        arrival_rate: float,
        latency_ms: FloatArray,
        quantiles: LatencyQuantiles,
        max_wait_ms: float,
        waiting_room: int | None,
        control_limit: int,
        coarse: bool = False,
    ) -> "RandomTimesQueue":
        """Put the times of batches on a lattice.

        Parameters
        ----------
        latency_ms : ndarray of float, shape (max_batch_size,)
            The profile's latency, to which `quantiles` are ratios.
        quantiles : LatencyQuantiles
        coarse : bool
            Whether to take larger steps, three times as fast.
        arrival_rate, max_wait_ms, waiting_room, control_limit
            The attributes of the same names.
        """
        means = quantiles.means_ms(latency_ms)
        step = _step_ms(arrival_rate, means, control_limit, max_wait_ms, coarse)
        ratios, weights = quantiles.points
        steps = ratios[: latency_ms.size] * (latency_ms[:, None] / step)
        below = steps.astype(np.intp)
        above = steps - below
        nodes = int(below.max()) + 2
        rows = nodes * np.arange(latency_ms.size)[:, None]
        positions, late = (rows + below).ravel(), (weights * above).ravel()
        early = np.broadcast_to(weights, above.shape).ravel() - late
        probabilities = np.asarray(np.bincount(positions, early, rows.size * nodes), np.float64)
        probabilities[1:] += np.bincount(positions, late, rows.size * nodes)[:-1]
        return cls(
            arrival_rate=arrival_rate,
            mean_times_ms=means,
            max_wait_ms=max_wait_ms,
            waiting_room=waiting_room,
            control_limit=control_limit,
            step_ms=step,
            time_probabilities=probabilities.reshape(rows.size, nodes),
        )

    @property
    def max_batch_size(self) -> int:
        """Largest batch size."""
        return int(self.mean_times_ms.size)

    @property
    def full_batch_ms(self) -> float:
        """Mean time of a batch of the largest size."""
        return float(self.mean_times_ms[-1])

    @property
    def nodes(self) -> int:
        """Lattice nodes that batch times reach, 0 included."""
        return int(self.time_probabilities.shape[1])

    @cached_property
    def times_ms(self) -> FloatArray:
        """The lattice of batch times, shape (nodes,)."""
        return np.asarray(self.step_ms * np.arange(self.nodes))

    @cached_property
    def full_batch_deviation_ms(self) -> float:
        """Standard deviation of the time of a batch of the largest size."""
        square = float(self.time_probabilities[-1] @ self.times_ms**2)
        return float(np.sqrt(max(square - self.full_batch_ms**2, 0.0)))

    def integration_weights_ms(self, nodes: int) -> FloatArray:
        """Return the weights that integrate over time from 0 on, shape (nodes,).

        They are those of the trapezoid rule with Gregory's correction for the slope at 0.
        """
        weights = np.full(nodes, self.step_ms)
        weights[:2] *= np.array([5, 13])[:nodes] / 12
        return weights

    def arrivals_since_start(self, count: int) -> FloatArray:
        """Return the probabilities of 0 to `count` - 1 arrivals since a batch started.

        An integral over the time left of a batch ends where that is the whole batch, and no time
        has elapsed. The trapezoid rule takes half there; Euler and Maclaurin correct it by the
        slope, which is not 0 for no arrival and for one.

        Returns
        -------
        ndarray of float, shape (nodes, count)
            By the steps elapsed.
        """
        arrivals = poisson_table(count, self.arrival_rate * self.times_ms)
        slope = self.arrival_rate * self.step_ms / 12
        arrivals[0, :2] = np.array([0.5 - slope, slope])[:count]
        return arrivals

    @cached_property
    def delay_decay_per_ms(self) -> float:
        """Rate at which the probability of long response times falls: θ of equation (31)."""
        return float(self.arrival_rate * np.expm1(self.decay_per_request))

    def longest_queue(self) -> int:
        """Return the queue length at a start that is exceeded with a probability near 1e-14."""
        if self.waiting_room is not None:
            return max(self.waiting_room, 1)
        return self.max_batch_size + int(np.ceil(_LOG_TAIL / self.decay_per_request))

    def queue_lengths_solved(self) -> tuple[int, int]:
        """Return how many queue lengths the equations need to leave from, and to reach.

        Beyond these the probabilities are geometric, so a large system needs no large matrix.
        """
        longest, size = self.longest_queue(), self.max_batch_size
        if self.waiting_room is not None:
            return longest, longest
        deviation = self.arrival_rate * self.full_batch_deviation_ms
        # The other terms of the tail fall as exp(-length √(2π / v)), v the variance of arrivals.
        reached = size + int(_LOG_TAIL * np.sqrt((size + deviation**2) / (2 * np.pi))) + 60
        if reached >= longest:
            return longest, longest
        arrivals = self.arrival_rate * self.full_batch_ms
        further = int(arrivals + 6 * np.sqrt(arrivals + deviation**2)) + size
        return min(longest, reached + max(4 * size, further)), reached

    @cached_property
    def decay_per_request(self) -> float:
        """Rate at which the probabilities of long queues fall: x of equation (31)."""
        probabilities = self.time_probabilities[-1]
        reached = np.flatnonzero(probabilities)
        times, logs = self.times_ms[reached], np.log(probabilities[reached])

        def excess(x: float) -> float:
            exponents = logs + self.arrival_rate * np.expm1(x) * times
            largest = exponents.max()
            growth = largest + np.log(np.exp(exponents - largest).sum())
            return float(growth) - self.max_batch_size * x

        high = 1.0
        while excess(high) <= 0:
            high *= 2
        low = high / 2
        while excess(low) >= 0:
            low /= 2
        return float(brentq(excess, low, high))


def _step_ms(
    arrival_rate: float,
    means_ms: FloatArray,
    control_limit: int,
    max_wait_ms: float,
    coarse: bool,
) -> float:
    """Return the step of the lattice, of which the max wait is a multiple."""
    size = control_limit if np.isinf(max_wait_ms) else 1
    for _ in range(50):  # the batch size at which as many requests arrive as it serves
        size = min(max(size, int(arrival_rate * means_ms[size - 1])), means_ms.size)
    step = min(_MAX_STEP_IN_ARRIVALS / arrival_rate, _MAX_STEP_IN_BATCHES * means_ms[size - 1])
    step *= _COARSE if coarse else 1.0
    if control_limit > 1 and 0 < max_wait_ms < np.inf:
        step = max_wait_ms / np.ceil(max_wait_ms / step)
    return float(step)


class RandomTimesChain:
    """The embedded chain of a control limit where batch times vary.

    Attributes
    ----------
    system : RandomTimesQueue
    longest : int
        Longest queue at a start that is considered.
    probabilities : ndarray of float, shape (longest,)
        Stationary probabilities; entry ``m - 1`` is for ``m`` requests in the queue when a batch
        starts, those it takes included.
    size_probabilities : ndarray of float, shape (max_batch_size + 1,)
        Fraction of the batches by their size, from 0 on.
    served_per_start, refused_per_start : float
        Mean number of requests that a batch takes, and that are refused between two starts.
    ms_per_start : float
        Mean time between two starts.
    """

    def __init__(self, system: RandomTimesQueue) -> None:
        self.system = system
        self.longest = system.longest_queue()
        rows, columns = system.queue_lengths_solved()
        tail = 0.0 if system.waiting_room is not None else np.exp(-system.decay_per_request)
        probabilities = stationary_with_tail(self._transitions(rows, columns), float(tail))
        further = tail ** np.arange(1, self.longest - probabilities.size + 1)
        probabilities = np.append(probabilities, probabilities[-1] * further)
        self.probabilities: FloatArray = probabilities / probabilities.sum()
        sizes = np.minimum(np.arange(1, self.longest + 1), system.max_batch_size)
        self.size_probabilities: FloatArray = np.zeros(system.max_batch_size + 1)
        np.add.at(self.size_probabilities, sizes, self.probabilities)
        self.served_per_start = float(self.probabilities @ sizes)
        self.refused_per_start = self._mean_refused()
        requests = self.served_per_start + self.refused_per_start
        self.ms_per_start = requests / system.arrival_rate

    def _mean_refused(self) -> float:
        """Return the mean number of requests refused between two starts."""
        system, room = self.system, self.system.waiting_room
        if room is None:
            return 0.0
        size, counts = system.max_batch_size, np.arange(room)
        # E[(N - c)+] = E[N] - E[N; N < c] - c P(N ≥ c) for N arrivals and c places left.
        arrivals = poisson_table(room, system.arrival_rate * system.times_ms)
        found = system.time_probabilities @ arrivals
        fewer = np.zeros((size, room + 1))
        fewer[:, 1:] = np.cumsum(found, axis=1)
        mean_of_fewer = np.zeros((size, room + 1))
        mean_of_fewer[:, 1:] = np.cumsum(found * counts, axis=1)
        lengths = np.arange(1, self.longest + 1)
        sizes = np.minimum(lengths, size)
        left = room - (lengths - sizes)
        row = sizes - 1
        refused = system.arrival_rate * system.mean_times_ms[row]
        refused = refused - mean_of_fewer[row, left] - left * (1 - fewer[row, left])
        return float(self.probabilities @ np.maximum(refused, 0.0))

    def _transitions(self, rows: int, columns: int) -> FloatArray:
        """Return the transition probabilities, (2) to (7) averaged over batch times."""
        system = self.system
        limit, d, size = system.control_limit, system.max_wait_ms, system.max_batch_size
        rate, times = system.arrival_rate, system.times_ms
        alone = min(size, rows)
        by_time = system.time_probabilities[:alone]
        room = columns if system.waiting_room is None else system.waiting_room
        arrivals = poisson_table(room + 1, rate * times)
        at_end = np.zeros((rows, room + 1))
        at_end[:alone] = by_time @ arrivals
        for left in range(1, min(rows - size, room) + 1):
            at_end[size - 1 + left, left:] = at_end[size - 1, : room + 1 - left]
        if columns == rows:
            at_end[:, room] = np.maximum(0.0, 1.0 - at_end[:, :room].sum(axis=1))
        transitions = np.zeros((rows, columns))
        if at_end.shape[1] > 1:
            transitions[:, limit - 1 :] = at_end[:, limit:]
        if np.isinf(d) or limit == 1:
            transitions[:, limit - 1] += at_end[:, :limit].sum(axis=1)
            return transitions
        none_older = np.minimum(1.0, d / np.maximum(times, _TINY_MS))
        expired = 1 - none_older[:, None] ** np.arange(1, limit)
        transitions[:alone, : limit - 1] += by_time @ (arrivals[:, 1:limit] * expired)
        not_yet = by_time @ np.exp(-rate * np.maximum(times - d, 0.0))
        transitions[:alone, : limit - 1] += not_yet[:, None] * poisson_table(limit - 1, rate * d)
        transitions[:alone, limit - 1] += 1 - transitions[:alone].sum(axis=1)
        transitions[alone:, : limit - 1] += at_end[alone:, 1:limit]
        if d > 0 and rows > size:
            self._correct_running_timers(transitions)
        return transitions

    def _correct_running_timers(self, transitions: FloatArray) -> None:
        """Account for requests left over whose timer still runs when they are the oldest (32)."""
        system = self.system
        size, limit, d = system.max_batch_size, system.control_limit, system.max_wait_ms
        rate, rows = system.arrival_rate, transitions.shape[0]
        full = system.time_probabilities[-1][:, None]
        ages = system.step_ms * np.arange(round(d / system.step_ms))
        # What a request changes that is the oldest at a batch end, by its age.
        at_timer = poisson_table(limit - 1, rate * d)
        change = np.zeros((ages.size, limit))
        change[:, : limit - 1] = at_timer - poisson_table(limit - 1, rate * ages)
        change[:, limit - 1] = -change[:, : limit - 1].sum(axis=1)
        for i in range(1, -(-rows // size)):
            # By the time left, r, of the batch in which it arrived; i full ones came in between.
            change = correlate(change, full[: ages.size])
            if np.abs(change).max() < _NEGLIGIBLE:
                break
            arriving = rate * system.integration_weights_ms(ages.size)[:, None] * change
            # Before it are the requests left over, from none on, and those that came meanwhile.
            left_over = np.arange(min(i * size, rows - size) + 1)
            came = system.arrivals_since_start(i * size + 1)[:, i * size - left_over]
            # After a batch that left some, which was a full one.
            by_time_left = correlate(full, came[:, 1:])[: ages.size]
            transitions[size : size + left_over[-1], :limit] += (
                by_time_left.T @ arriving[: by_time_left.shape[0]]
            )
            # After a batch that left none, of any size: the elapsed time and r make up its time.
            by_time = convolve_over_time(arriving, came[:, :1])[: system.nodes]
            of_size = system.time_probabilities[:, : by_time.shape[0]]
            transitions[:size, :limit] += of_size @ by_time


def correlate(later: FloatArray, earlier: FloatArray) -> FloatArray:
    """Return the sums over n of ``later[n] * earlier[n - r]`` for each r from 0, along axis 0.

    Returns
    -------
    ndarray of float, shape (later.shape[0], ...)
        The other axes broadcast.
    """
    length = fft.next_fast_len(later.shape[0] + earlier.shape[0], real=True)
    product = fft.rfft(later, length, axis=0) * np.conj(fft.rfft(earlier, length, axis=0))
    return np.asarray(fft.irfft(product, length, axis=0)[: later.shape[0]])


def convolve_over_time(first: FloatArray, second: FloatArray) -> FloatArray:
    """Convolve along axis 0; the other axes broadcast."""
    count = first.shape[0] + second.shape[0] - 1
    length = fft.next_fast_len(count, real=True)
    product = fft.rfft(first, length, axis=0) * fft.rfft(second, length, axis=0)
    return np.asarray(fft.irfft(product, length, axis=0)[:count])
