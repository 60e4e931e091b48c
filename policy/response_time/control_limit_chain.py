r"""The queue length at the starts of batches, under a control limit and a max wait.

A start finds :math:`m` requests in the queue and takes :math:`\min(m, B)`. If it leaves nobody,
what happens until the next start depends on the batch time alone. If it leaves some, the timer of
the oldest of them matters too. Its age follows from the batch in which it arrived, so the equations
stay linear (`ControlLimitChain._correct_running_timers`). Sections 2 and 3 of
docs/response_times.md derive them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policy.probability import poisson_pmf, poisson_table
from policy.response_time.quadrature import gauss_legendre
from policy.response_time.queue_system import EmbeddedChain, QueueSystem

FloatArray = NDArray[np.float64]

_POINTS, _WEIGHTS = gauss_legendre(24)


@dataclass(frozen=True)
class ControlLimitQueue(QueueSystem):
    """A device under a control limit and a max wait, with Poisson arrivals.

    Attributes
    ----------
    control_limit : int
        L: the queue length at which a free device starts.
    """

    control_limit: int

    def refuses_none_below_limit(self) -> bool:
        """Return whether no request is refused while fewer than the limit are behind the oldest.

        That is so where full batches shorten a full room to a queue of at least the limit, or
        where one batch takes the whole room. Then all that came since its arrival wait behind the
        oldest request of a short queue, a Poisson number.
        """
        room, size = self.waiting_room, self.max_batch_size
        return not room or room <= size or (room - 1) % size + 1 >= self.control_limit

    def followers(
        self, count: int, residual_ms: FloatArray, full_batches: int, position: int
    ) -> FloatArray:
        """Return the probabilities that 0 to `count` - 1 requests wait behind one in the queue.

        Parameters
        ----------
        count : int
        residual_ms : ndarray of float, shape (n,)
            The request arrived so long before the end of a batch.
        full_batches : int
            Full batches served since that end.
        position : int
            Its position in the queue now, from 1.

        Returns
        -------
        ndarray of float, shape (n, count)
        """
        later = self.arrival_rate * full_batches * self.repeated_batch_ms
        early = self.arrival_rate * np.asarray(residual_ms)
        room = None if self.waiting_room is None else self.waiting_room - position
        if room is not None:
            room -= full_batches * self.max_batch_size
        if room is None or room >= count:
            return poisson_table(count, early + later)
        # Until its first batch end only as many come in as find room; later there is room enough.
        accepted = poisson_table(room + 1, early)
        accepted[..., room] = np.maximum(0.0, 1.0 - accepted[..., :room].sum(axis=-1))
        more = np.arange(count) - np.arange(room + 1)[:, None]
        return np.asarray(accepted @ poisson_pmf(more, later))


class ControlLimitChain(EmbeddedChain):
    """The embedded chain of a control limit.

    Attributes
    ----------
    system : ControlLimitQueue
        Also see `EmbeddedChain`.
    """

    def __init__(self, system: ControlLimitQueue) -> None:
        rows, columns, longest = system.queue_lengths_solved()
        sizes = np.minimum(np.arange(1, longest + 1), system.max_batch_size)
        super().__init__(system, longest, sizes)
        self.system = system
        self.solve(self._transitions(rows, columns))

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

        Shape (rows, columns + 1), or (rows, waiting_room + 1); those refused are not counted.
        """
        system = self.system
        size = system.max_batch_size
        alone = min(size, rows)
        room = columns if system.waiting_room is None else system.waiting_room
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
        rate, full_ms = system.arrival_rate, system.repeated_batch_ms
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
