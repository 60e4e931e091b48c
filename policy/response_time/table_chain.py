r"""The queue length at the starts of batches, under any table of actions.

A table may start batches that leave requests behind, so requests are followed from batch to batch,
by their position in the queue and the number behind them, at quadrature points of the time that was
left of the batch in which they arrived. That is slower than under a control limit and as exact, but
for one thing: with a max wait, where the oldest request waits at a free device, the others are
taken as uniform over its age. Section 7 of docs/response_times.md has the equations.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.probability import poisson_pmf
from policy.response_time.queue_system import EmbeddedChain, QueueSystem
from policy.response_time.table_requests import NEGLIGIBLE, ArrivalsInBatch, follow_requests

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

_MAX_ROUNDS = 60
# Results of earlier rounds that a round looks at.
_MEMORY = 4


@dataclass(frozen=True)
class TableQueue(QueueSystem):
    """A device under a table of actions, with Poisson arrivals.

    Attributes
    ----------
    actions : tuple of int
        Batch size to start, by queue length; 0 is to wait. The last entry holds for all beyond.

    Raises
    ------
    InvalidInputError
        A wait ends with requests left behind, or not at all: the equations do not cover it.
    """

    actions: tuple[int, ...]

    def __post_init__(self) -> None:
        for length, start in self.start_length.items():
            if self.actions[start] < start:
                raise InvalidInputError(
                    f"actions: a policy that waits at queue length {length} for {start} must then "
                    f"start {start}, not {self.actions[start]}"
                )
            if self.waiting_room is not None and start > max(self.waiting_room, 1):
                raise InvalidInputError(
                    f"waiting_room: must be at least {start}, for which the policy waits, not "
                    f"{self.waiting_room}"
                )

    def batch_size(self, queue_length: IntArray) -> IntArray:
        """Return the batch size to start at each queue length, same shape."""
        return np.array(self.actions)[np.minimum(queue_length, len(self.actions) - 1)]

    @property
    def repeated_batch_size(self) -> int:
        """Batch size that every queue of at least `settled_length` starts."""
        return self.actions[-1]

    @property
    def settled_length(self) -> int:
        """Queue length from which on all batches have the `repeated_batch_size`."""
        return len(self.actions) - 1

    def longest_queue(self) -> int:
        """Return the queue length at a start that is exceeded with a probability near 1e-14."""
        longest = super().longest_queue()
        if self.waiting_room is None:
            longest += len(self.actions)
            if self.repeated_batch_size < self.max_batch_size:
                longest += self.max_arrivals()
        return longest

    @cached_property
    def start_length(self) -> dict[int, int]:
        """Queue length at which a wait ends, by each length at which a free device waits."""
        return BatchingPolicy(self.actions).start_length


class TableChain(EmbeddedChain):
    """The embedded chain of a table of actions.

    With a max wait, how a wait ends depends on the age of the oldest request, which follows from
    the probabilities sought: they are found by iteration.

    Attributes
    ----------
    system : TableQueue
        Also see `EmbeddedChain`.
    """

    def __init__(self, system: TableQueue) -> None:
        self._rows, self._columns, longest = system.queue_lengths_solved()
        lengths = np.arange(1, longest + 1)
        # Where the table waits, a start takes all: the timer has run off.
        sizes = system.batch_size(lengths)
        sizes = np.where(sizes > 0, sizes, np.minimum(lengths, system.max_batch_size))
        super().__init__(system, longest, sizes)
        self.system = system
        self._at_end = self._queue_at_batch_end()
        self._solve({length: {start: 1.0} for length, start in system.start_length.items()})
        if np.isfinite(system.max_wait_ms):
            self._iterate()

    def _iterate(self) -> None:
        """Find the probabilities that agree with the waits they imply, by Anderson's method.

        Each step goes to the combination of the last results whose change was least.
        """
        results: list[FloatArray] = []
        changes: list[FloatArray] = []
        for _ in range(_MAX_ROUNDS):
            before = self.probabilities
            self._solve(self._wait_ends())
            results.append(self.probabilities)
            changes.append(self.probabilities - before)
            if np.abs(changes[-1]).max() < NEGLIGIBLE:
                return
            if len(changes) > 1:
                results, changes = results[-_MEMORY:], changes[-_MEMORY:]
                steps = np.diff(changes, axis=0)
                shares = np.linalg.lstsq(steps.T, changes[-1], rcond=None)[0]
                self.probabilities = results[-1] - shares @ np.diff(results, axis=0)

    def at_batch_end(self) -> FloatArray:
        """Return the probabilities of the queue length at the end of a batch, from 0 on."""
        return np.asarray(self.probabilities[: self._at_end.shape[0]] @ self._at_end)

    def _queue_at_batch_end(self) -> FloatArray:
        """Return the probabilities of the queue length at a batch's end, by that at its start."""
        system = self.system
        rows = self._rows
        room = self._columns if system.waiting_room is None else system.waiting_room
        means = system.arrival_rate * self.batch_times_ms[:rows, None]
        at_end = poisson_pmf(np.arange(room + 1) - self.left_over[:rows, None], means)
        if rows == self._columns:
            at_end[:, room] = np.maximum(0.0, 1.0 - at_end[:, :room].sum(axis=1))
        return at_end

    def _solve(self, wait_ends: dict[int, dict[int, float]]) -> None:
        """Compute the stationary probabilities, given how waits end (as `_wait_ends` has it)."""
        transitions = np.zeros((self._at_end.shape[0], self._columns))
        for length in range(self._at_end.shape[1]):
            for start, probability in wait_ends.get(length, {length: 1.0}).items():
                transitions[:, start - 1] += self._at_end[:, length] * probability
        self.solve(transitions)

    def _wait_ends(self) -> dict[int, dict[int, float]]:
        """Return the probabilities of the queue length at the end of a wait, by that before (25).

        The ages of the oldest request are those under the latest `probabilities`.
        """
        system = self.system
        rate, d = system.arrival_rate, system.max_wait_ms
        ages: dict[int, list[tuple[FloatArray, FloatArray]]] = {1: []}
        for requests in follow_requests(self, ArrivalsInBatch.of(self)):
            for length, counts in requests.oldest_waiting(system):
                ages.setdefault(length, []).append((requests.ages_ms, counts))
        ends: dict[int, dict[int, float]] = {}
        for length, start in system.start_length.items():
            first = max(length, 1)  # the wait at an empty queue begins with its first request
            parts = ages.get(length, []) if length else [(np.zeros(1), np.ones(1))]
            age = np.concatenate([part[0] for part in parts] or [np.zeros(1)])
            weight = np.concatenate([part[1] for part in parts] or [np.ones(1)])
            weight = weight / weight.sum() if weight.sum() > 0 else np.full(age.size, 1 / age.size)
            end = {
                first + more: float(
                    weight
                    @ np.where(
                        age < d,
                        poisson_pmf(more, rate * np.maximum(d - age, 0.0)),
                        float(more == 0),
                    )
                )
                for more in range(start - first)
            }
            end[start] = max(0.0, 1.0 - sum(end.values()))
            ends[length] = end
        return ends
