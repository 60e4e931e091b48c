r"""The queue length at the starts of batches, under any table of actions.

A table may start batches that leave requests behind, so requests are followed from batch to batch,
by their position in the queue and the number behind them, at quadrature points of the time that was
left of the batch in which they arrived. That is slower than under a control limit and as exact, but
for one thing: with a max wait, where the oldest request waits at a free device, the others are
taken as uniform over its age. Section 7 of docs/response_times.md has the equations.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import pdtr

from policy.errors import InvalidInputError
from policy.probability import convolve, poisson_pmf, poisson_table
from policy.response_time.distribution import AgesInFullBatches
from policy.response_time.quadrature import Panels
from policy.response_time.queue_system import EmbeddedChain, QueueSystem

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

NEGLIGIBLE = 1e-10
"""Requests per start below which a group of them is left out."""
_MAX_ROUNDS = 60
# A density is cut where it jumps, at the likeliest of its jumps.
_MAX_JUMPS = 48


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
        starts, start = {}, len(self.actions) - 1
        for length in range(len(self.actions) - 1, -1, -1):
            if self.actions[length]:
                start = length
            else:
                starts[length] = start
        return starts


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
            for _ in range(_MAX_ROUNDS):
                before = self.probabilities
                self._solve(self._wait_ends())
                if np.abs(self.probabilities - before).max() < NEGLIGIBLE:
                    break

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


@dataclass(frozen=True)
class RequestsAtBatchEnd:
    """Requests in the queue at the end of a batch, by position, number behind them, and age.

    Attributes
    ----------
    panels : Panels
        Of their ages.
    density : ndarray, shape (positions, followers, nodes)
        Per start, over the age: the request at position ``k`` (from 1) with ``j`` behind it is
        ``[k - 1, j]``.
    queue_lengths, batch_sizes : ndarray of int, shape (positions, followers)
        The queue length, and the batch that the device starts; 0 is to wait.
    """

    panels: Panels
    density: FloatArray
    queue_lengths: IntArray
    batch_sizes: IntArray

    @property
    def ages_ms(self) -> FloatArray:
        """Ages at the nodes, shape (nodes,)."""
        return self.panels.nodes_ms.ravel()

    def counts(self, density: FloatArray) -> FloatArray:
        """Turn a density at the nodes, shape (..., nodes), into requests at each node."""
        return density * self.panels.weights_ms.ravel()

    def oldest_waiting(self, system: TableQueue) -> Iterator[tuple[int, FloatArray]]:
        """Yield each queue length at which the device waits, and its counts by age of the oldest.

        The counts have shape (nodes,).
        """
        for followers in np.flatnonzero(self.batch_sizes[0] == 0):
            length = int(self.queue_lengths[0, followers])
            if length in system.start_length:
                yield length, self.counts(self.density[0, followers])


@dataclass(frozen=True)
class ArrivalsInBatch:
    """Requests that arrive while a batch is in service, by position in the queue.

    Attributes
    ----------
    panels : Panels
        Of the time left of that batch.
    by_position : ndarray of float, shape (positions, nodes)
        Density per start, by position from 0.
    surely_full_from : int
        Position from which on a request waits for batches of the repeated size only.
    """

    panels: Panels
    by_position: FloatArray
    surely_full_from: int

    @classmethod
    def of(cls, chain: TableChain) -> "ArrivalsInBatch":
        """Compute the arrivals in the batches of a chain."""
        panels, by_position = _arrivals_in_a_batch(chain)
        system, positions = chain.system, by_position.shape[0]
        if system.waiting_room is not None:
            return cls(panels, by_position, positions)
        # Whoever is f batches behind the settled length has at least the arrivals of f batches
        # behind it: enough, from some f on, to keep the queue settled until it is served.
        batches = np.arange(1, positions // system.repeated_batch_size + 2)
        mean = system.arrival_rate * system.repeated_batch_ms * batches
        unsure = pdtr(system.settled_length - 1, mean) > NEGLIGIBLE * 1e-2
        sure_from = system.settled_length + system.repeated_batch_size * np.count_nonzero(unsure)
        return cls(panels, by_position, min(positions, int(sure_from)))

    def in_full_batches(self, chain: TableChain) -> AgesInFullBatches | None:
        """Count the requests from `surely_full_from` on; None if there are none."""
        system = chain.system
        size, positions = system.repeated_batch_size, self.by_position.shape[0]
        if self.surely_full_from >= positions:
            return None
        first = self.surely_full_from // size
        blocks = min(-(-positions // size), chain.complete_blocks) - first
        density = np.zeros(((first + blocks) * size, self.by_position.shape[1]))
        end = min(positions, density.shape[0])
        density[self.surely_full_from : end] = self.by_position[self.surely_full_from : end]
        rows = density[first * size :].reshape(blocks, size, -1).sum(axis=1)
        goes_on = chain.probability_beyond > 0
        return AgesInFullBatches(
            self.panels,
            rows.reshape(blocks, *self.panels.nodes_ms.shape),
            system.repeated_batch_ms,
            first,
            -system.tail_decay * size if goes_on else -np.inf,
        )


def follow_requests(chain: TableChain, arrivals: ArrivalsInBatch) -> Iterator[RequestsAtBatchEnd]:
    """Follow requests that arrive while a batch is in service, from batch end to batch end (24).

    Groups of equal time since the batch in which they arrived are yielded in the order of that
    time. What the device does at that batch end says which of them are served, wait, or stay in
    the queue until the next. Requests of `arrivals.in_full_batches` are left out.
    """
    system = chain.system
    size, rate, room = system.repeated_batch_size, system.arrival_rate, system.waiting_room
    panels, arriving = arrivals.panels, arrivals.by_position
    left = panels.nodes_ms.ravel()
    # From this queue length on all batches are alike: who is further back waits for those only.
    settled = system.settled_length if room is None else max(room, 1)
    followers = settled
    j = np.arange(followers)
    pending: dict[float, FloatArray] = {}
    for position in range(arrivals.surely_full_from):
        full_batches = max(0, -(-(position + 1 - settled) // size))
        offset = round(full_batches * system.repeated_batch_ms, 9)
        density = pending.setdefault(offset, np.zeros((settled, followers, left.size)))
        here = position - full_batches * size
        behind = poisson_table(followers, rate * (offset + left))
        density[here] += (arriving[position, :, None] * _within_room(behind, room, here)).T
    k = np.arange(1, settled + 1)[:, None]
    lengths = k + j
    sizes = system.batch_size(lengths)
    while pending:
        offset = min(pending)
        density = pending.pop(offset)
        requests = RequestsAtBatchEnd(Panels(panels.edges_ms + offset), density, lengths, sizes)
        yield requests
        for taken in np.unique(sizes[(sizes > 0) & (sizes < k)]):
            stay = np.where(((sizes == taken) & (k > taken))[..., None], density, 0.0)[taken:]
            if np.abs(requests.counts(stay)).sum() < NEGLIGIBLE:
                continue
            time_ms = float(system.batch_times_ms[taken - 1])
            joined = poisson_pmf(j - j[:, None], rate * time_ms)
            later = pending.setdefault(
                round(offset + time_ms, 9), np.zeros((settled, followers, left.size))
            )
            for here in range(stay.shape[0]):
                later[here] += _within_room(joined, room, here).T @ stay[here]


def _within_room(probabilities: FloatArray, room: int | None, position: int) -> FloatArray:
    """Move the probability of more followers than fit behind `position` (from 0) to the most."""
    probabilities = probabilities.copy()
    last = probabilities.shape[-1] - 1 if room is None else max(room - position - 1, 0)
    probabilities[..., last] = np.maximum(0.0, 1.0 - probabilities[..., :last].sum(axis=-1))
    probabilities[..., last + 1 :] = 0.0
    return probabilities


def _arrivals_in_a_batch(chain: TableChain) -> tuple[Panels, FloatArray]:
    """Return the density of arrivals over the time that is left of their batch (9).

    Returns
    -------
    panels : Panels
        The time left.
    arriving : ndarray of float, shape (positions, nodes)
        Per start, by position in the queue, from 0.
    """
    system = chain.system
    rate, d = system.arrival_rate, system.max_wait_ms
    positions = chain.longest if system.waiting_room is None else system.waiting_room
    likely = np.zeros(system.max_batch_size + 1)
    np.add.at(likely, chain.batch_sizes, chain.probabilities)
    sizes = np.flatnonzero(likely > NEGLIGIBLE * 1e-2)
    times = system.batch_times_ms[sizes - 1]
    end = float(times[-1])
    jumps = times[np.argsort(likely[sizes])[-_MAX_JUMPS:]]
    if np.isfinite(d):
        sums = np.add.outer(np.arange(4) * times[-1], np.append(0.0, times)).ravel()
        jumps = np.append(jumps, (d - sums)[(d > sums) & (d - sums < end)][:64])
    panels = Panels.cut(end, jumps, min(end / 4, (1 + np.sqrt(rate * end)) / rate))
    left = panels.nodes_ms.ravel()
    max_arrivals = int(rate * end + 10 * np.sqrt(rate * end) + 30)
    arriving = np.zeros((positions, left.size))
    for batch_size, time_ms in zip(sizes, times, strict=True):
        here = chain.batch_sizes == batch_size
        left_over = np.zeros(positions + 1)
        np.add.at(left_over, chain.left_over[here], chain.probabilities[here])
        inside = left < time_ms
        counts = poisson_table(min(positions, max_arrivals), rate * (time_ms - left[inside]))
        if left_over[1:].any():
            counts = convolve(counts, left_over)[:, :positions]
        else:
            counts = left_over[0] * counts
        arriving[: counts.shape[1], inside] += rate * counts.T
    return panels, arriving
