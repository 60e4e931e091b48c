r"""The queue lengths at which batches start, under any table of actions.

A start that finds :math:`m` requests takes :math:`b_m` and leaves :math:`\ell_m`. The queue at the
end of the batch is :math:`\ell_m` and a number of arrivals that is Poisson, given the time of the
batch. There the next batch starts, unless the device waits: for the next longer queue that starts a
batch, or by the timer of the oldest request. Long queues fall by :math:`e^{-x}` per request, with

.. math:: \mathrm E\,e^{\theta S_b} = e^{b x}, \qquad \theta = \lambda (e^x - 1)

(equations 1 to 3 and 8 of docs/policy.md; with batch times that vary here).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policy.batching_policy import BatchingPolicy
from policy.numerics.markov import mixed_tail_decay, stationary_with_tail
from policy.numerics.probability import poisson_table

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_LOG_TAIL = 32.0
"""Queue lengths of a probability below ``exp(-_LOG_TAIL)`` are left out."""


@dataclass(frozen=True)
class StartLengths:
    """The stationary queue lengths at the starts of batches.

    Entry ``m - 1`` of the probabilities is that of m requests, those that the batch takes included.
    From the last of these lengths on, each is less probable by `tail_ratio`; 0: none is longer.
    """

    probabilities: FloatArray
    tail_ratio: float

    def quantiles(self, levels: FloatArray) -> IntArray:
        """Return the least queue lengths whose cumulative probabilities reach levels below 1."""
        cumulative = np.cumsum(self.probabilities)
        beyond = self.probabilities[-1] * self.tail_ratio / (1 - self.tail_ratio)
        cumulative /= cumulative[-1] + beyond
        lengths = np.searchsorted(cumulative, levels) + 1
        longer = levels > cumulative[-1]
        if self.tail_ratio and np.any(longer):
            further = np.log((1 - levels[longer]) / (1 - cumulative[-1])) / np.log(self.tail_ratio)
            lengths[longer] = cumulative.size + 1 + np.floor(further)
        return np.minimum(lengths, np.iinfo(np.int64).max // 2)


class StartLengthChain:
    """The chain of queue lengths at the starts of batches.

    A batch of each size takes one of the `batch_times_ms`, shape (max_batch_size, points) or more
    sizes, with the `time_probabilities`, shape (points,).
    """

    def __init__(
        self,
        policy: BatchingPolicy,
        arrivals_per_ms: float,
        batch_times_ms: FloatArray,
        time_probabilities: FloatArray,
        max_queue_rows: int | None,
    ) -> None:
        self._policy = policy
        last, size, largest = len(policy.actions) - 1, policy.actions[-1], policy.max_batch_size
        full_ms = batch_times_ms[size - 1]
        longest_batch = arrivals_per_ms * float(batch_times_ms[:largest].max())
        most = int(longest_batch + 7 * np.sqrt(longest_batch) + 12)
        if max_queue_rows is not None:
            self._tail_ratio = 0.0
            self._columns = rows = max(max_queue_rows, 1)
            room = max_queue_rows
        else:
            decay = mixed_tail_decay(arrivals_per_ms * full_ms, time_probabilities, size)
            self._tail_ratio = float(np.exp(-decay))
            mean_ms = float(full_ms @ time_probabilities)
            variance = arrivals_per_ms**2 * float((full_ms - mean_ms) ** 2 @ time_probabilities)
            # The other terms of the tail fall as exp(-length √(2π / v)), v that of the arrivals.
            reach = 60 + int(_LOG_TAIL * np.sqrt((size + variance) / (2 * np.pi)))
            self._columns = room = last + (most if size < largest else 0) + reach
            rows = self._columns + size
        started = np.array([policy.batch_size(q) or min(q, largest) for q in range(1, rows + 1)])
        arrivals = np.zeros((largest + 1, most))
        used = np.unique(started)
        table = poisson_table(most, arrivals_per_ms * batch_times_ms[used - 1])
        arrivals[used] = np.einsum("p,bpn->bn", time_probabilities, table)
        self._at_end = np.zeros((rows, room + 1))
        for row, batch in enumerate(started.tolist()):
            left = row + 1 - batch
            reached = max(0, min(most, room + 1 - left))
            self._at_end[row, left : left + reached] = arrivals[batch, :reached]
        if max_queue_rows is not None:
            below = self._at_end[:, :room].sum(axis=1)
            self._at_end[:, room] = np.maximum(0.0, 1.0 - below)

    def solve(self, waits: FloatArray) -> StartLengths:
        """Return the stationary queue lengths.

        Row ``q`` of `waits`, shape (len(actions), len(actions)), says how often a free device with
        a queue of q, for which it waits, starts a batch at each longer queue. Without any, a wait
        ends at the next queue that starts one.
        """
        at_end, columns = self._at_end, self._columns
        transitions = np.zeros((at_end.shape[0], columns))
        transitions[:, : at_end.shape[1] - 1] = at_end[:, 1:]
        for queue, start in self._policy.start_length.items():
            if queue >= at_end.shape[1]:
                continue
            if queue:
                transitions[:, queue - 1] -= at_end[:, queue]
            ended = waits[queue, 1 : columns + 1]
            if ended.any():
                transitions[:, : ended.size] += np.outer(at_end[:, queue], ended / ended.sum())
            else:
                transitions[:, start - 1] += at_end[:, queue]
        ratio = self._tail_ratio
        return StartLengths(stationary_with_tail(transitions, ratio), ratio)
