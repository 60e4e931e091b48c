"""Requests under a table of actions, followed from batch end to batch end.

Section 7 of docs/response_times.md has the equations. `follow_requests` has two ways to keep the
ages: by the quadrature points of the batch in which a request arrived and the sum of the batch
times since, where such sums are few; and on an even grid (`AgeGrid`), where they are many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import pdtr

from policy.errors import InvalidInputError
from policy.probability import convolve, poisson_pmf, poisson_table
from policy.response_time.age_grid import AgeGrid
from policy.response_time.distribution import AgesInFullBatches
from policy.response_time.quadrature import Panels

if TYPE_CHECKING:
    from policy.response_time.table_chain import TableChain, TableQueue

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

NEGLIGIBLE = 1e-10
"""Requests per start below which a group of them is left out."""
# A density is cut where it jumps, at the likeliest of its jumps.
_MAX_JUMPS = 48
# Numbers in all groups of equal time, beyond which a grid is used, and in the grid: 320 MB.
_MAX_NUMBERS = 40_000_000
_MAX_SUMS = 64
# Points of the grid per repeated batch, and the fewest and the most of all.
_POINTS_PER_BATCH, _MIN_POINTS, _MAX_POINTS = 200, 256, 2048


@dataclass(frozen=True)
class RequestsAtBatchEnd:
    """Requests in the queue at the end of a batch, by position, number behind them, and age.

    Attributes
    ----------
    panels : Panels or AgeGrid
        Of their ages.
    density : ndarray, shape (positions, followers, nodes)
        Per start, over the age (counts, on a grid): the request at position ``k`` (from 1) with
        ``j`` behind it is ``[k - 1, j]``.
    queue_lengths, batch_sizes : ndarray of int, shape (positions, followers)
        The queue length, and the batch that the device starts; 0 is to wait.
    """

    panels: Panels | AgeGrid
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
    def of(cls, chain: TableChain) -> ArrivalsInBatch:
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


class _Table:
    """What a table does by position in the queue (from 1) and requests behind."""

    def __init__(self, chain: TableChain, arrivals: ArrivalsInBatch) -> None:
        system = chain.system
        self.system, self.arrivals = system, arrivals
        self.room = system.waiting_room
        # From this queue length on all batches are alike. Further back, a request waits for those
        # only, and so does one with as many behind it.
        self.settled = system.settled_length if self.room is None else max(self.room, 1)
        k, j = np.arange(1, self.settled + 1)[:, None], np.arange(self.settled)
        self.lengths = k + j
        self.sizes = system.batch_size(self.lengths)
        self._stays = (self.sizes > 0) & (self.sizes < k)
        self.taken_before = [
            np.unique(sizes[stays]).tolist()
            for sizes, stays in zip(self.sizes, self._stays, strict=True)
        ]

    def joined(self, time_ms: float) -> FloatArray:
        """Return the probabilities of the number behind after a batch, by that before."""
        j = np.arange(self.settled)
        return poisson_pmf(j - j[:, None], self.system.arrival_rate * time_ms)

    def within_room(self, probabilities: FloatArray, position: int) -> FloatArray:
        """Move the probability of more than fit behind `position` (from 0) to the most that fit."""
        last = self.settled - 1 if self.room is None else max(self.room - position - 1, 0)
        probabilities = probabilities.copy()
        probabilities[..., last] = np.maximum(0.0, 1.0 - probabilities[..., :last].sum(axis=-1))
        probabilities[..., last + 1 :] = 0.0
        return probabilities

    def offsets_ms(self) -> list[float]:
        """Return the times of full batches after which a position back in the queue counts."""
        beyond = self.arrivals.surely_full_from - self.settled
        batches = max(0, -(-beyond // self.system.repeated_batch_size))
        return [self.system.repeated_batch_ms * number for number in range(batches + 1)]

    def arrived(self, batches: int) -> FloatArray:
        """Return the requests that `batches` full batches have brought within `settled` (24)."""
        left = self.arrivals.panels.nodes_ms.ravel()
        time_ms = batches * self.system.repeated_batch_ms
        behind = poisson_table(self.settled, self.system.arrival_rate * (time_ms + left))
        density = np.zeros((self.settled, self.settled, left.size))
        shift = batches * self.system.repeated_batch_size
        first = 0 if batches == 0 else self.settled - self.system.repeated_batch_size
        for here in range(max(first, 0), self.settled):
            position = here + shift
            if position < self.arrivals.surely_full_from:
                within = self.within_room(behind, here)
                density[here] = (self.arrivals.by_position[position, :, None] * within).T
        return density

    def sums_of_batch_times(self) -> int:
        """Return how many times can pass before a request is served, counted up to `_MAX_SUMS`."""
        at: list[set[float]] = [set(self.offsets_ms()) for _ in range(self.settled)]
        every: set[float] = set()
        for here in range(self.settled - 1, -1, -1):
            every |= at[here]
            if len(every) > _MAX_SUMS:
                break
            for size in self.taken_before[here]:
                time_ms = float(self.system.batch_times_ms[size - 1])
                at[here - size] |= {round(sum_ms + time_ms, 9) for sum_ms in at[here]}
        return len(every)

    def grid(self) -> AgeGrid:
        """Make a grid for all ages that requests can reach.

        Raises
        ------
        InvalidInputError
            The table, or the waiting room, is too long for it.
        """
        longest_stay = np.zeros(self.settled)
        for here in range(self.settled):
            longest_stay[here] = max(
                (
                    float(self.system.batch_times_ms[size - 1]) + longest_stay[here - size]
                    for size in self.taken_before[here]
                ),
                default=0.0,
            )
        end = self.arrivals.panels.edges_ms[-1] + self.offsets_ms()[-1] + longest_stay.max()
        wanted = _POINTS_PER_BATCH * end / self.system.repeated_batch_ms
        points = int(np.clip(wanted, _MIN_POINTS, _MAX_POINTS))
        points = max(min(points, _MAX_NUMBERS // self.settled**2), _MIN_POINTS)
        if points * self.settled**2 > _MAX_NUMBERS:
            what = "actions: a table" if self.room is None else "waiting_room: a room"
            raise InvalidInputError(
                f"{what} of at most {int((_MAX_NUMBERS / _MIN_POINTS) ** 0.5)} can be evaluated "
                f"for a policy whose batches leave requests behind, not {self.settled}"
            )
        return AgeGrid(end / (points - 3), points)


def follow_requests(chain: TableChain, arrivals: ArrivalsInBatch) -> Iterator[RequestsAtBatchEnd]:
    """Follow requests that arrive while a batch is in service, from batch end to batch end (24).

    What the device does at a batch end says which requests are served, wait, or stay in the queue
    until the next. Requests of `arrivals.in_full_batches` are left out.

    Raises
    ------
    InvalidInputError
        The table, or the waiting room, is too long.
    """
    table = _Table(chain, arrivals)
    sums, nodes = table.sums_of_batch_times(), arrivals.panels.nodes_ms.size
    if sums <= _MAX_SUMS and sums * table.settled**2 * nodes <= _MAX_NUMBERS:
        yield from _follow_sums(table)
    else:
        yield from _follow_on_grid(table)


def _follow_sums(table: _Table) -> Iterator[RequestsAtBatchEnd]:
    """Follow requests in groups of equal time since the batch in which they arrived."""
    panels = table.arrivals.panels
    pending = {
        round(offset, 9): table.arrived(batches)
        for batches, offset in enumerate(table.offsets_ms())
    }
    while pending:
        offset = min(pending)
        density = pending.pop(offset)
        requests = RequestsAtBatchEnd(
            Panels(panels.edges_ms + offset), density, table.lengths, table.sizes
        )
        yield requests
        for size in sorted(set().union(*table.taken_before)):
            stay = np.where((table.sizes == size)[..., None], density, 0.0)[size:]
            if np.abs(requests.counts(stay)).sum() < NEGLIGIBLE:
                continue
            time_ms = float(table.system.batch_times_ms[size - 1])
            joined = table.joined(time_ms)
            later = pending.setdefault(round(offset + time_ms, 9), np.zeros_like(density))
            for here in range(stay.shape[0]):
                later[here] += table.within_room(joined, here).T @ stay[here]


def _follow_on_grid(table: _Table) -> Iterator[RequestsAtBatchEnd]:
    """Follow requests at the first batch end by quadrature points, and from then on a grid.

    A request only moves forward, so one sweep from the last position to the first is enough.
    """
    panels, grid = table.arrivals.panels, table.grid()
    on_grid = np.zeros((table.settled, table.settled, grid.points))
    for batches, offset in enumerate(table.offsets_ms()):
        ages = Panels(panels.edges_ms + offset)
        requests = RequestsAtBatchEnd(ages, table.arrived(batches), table.lengths, table.sizes)
        yield requests
        to_grid = grid.from_panels(ages)
        for here, sizes in enumerate(table.taken_before):
            if not sizes:
                continue
            stays = np.isin(table.sizes[here], sizes)
            on_grid[here, stays] += requests.density[here, stays] @ to_grid
        del requests
    joined: dict[int, FloatArray] = {}
    for here in range(table.settled - 1, 0, -1):
        for size in table.taken_before[here]:
            behind = np.flatnonzero(table.sizes[here] == size)
            behind = behind[on_grid[here, behind].sum(axis=1) > NEGLIGIBLE * 1e-4]
            if behind.size == 0:
                continue
            time_ms = float(table.system.batch_times_ms[size - 1])
            if size not in joined:
                joined[size] = table.joined(time_ms)
            moved = grid.shift(on_grid[here, behind], time_ms)
            became = table.within_room(joined[size][behind], here - size)
            on_grid[here - size] += became.T @ moved
    yield RequestsAtBatchEnd(grid, on_grid, table.lengths, table.sizes)


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
    likely[system.repeated_batch_size] += chain.probability_beyond
    sizes = np.flatnonzero(likely > NEGLIGIBLE * 1e-2)
    times = system.batch_times_ms[sizes - 1]
    end = float(times[-1])
    jumps = times[np.argsort(likely[sizes])[-_MAX_JUMPS:]]
    if np.isfinite(d):
        sums = np.add.outer(np.arange(4) * times[-1], np.append(0.0, times)).ravel()
        jumps = np.append(jumps, (d - sums)[(d > sums) & (d - sums < end)][:64])
    panels = Panels.cut(end, jumps, min(end / 4, 0.5 * (1 + np.sqrt(rate * end)) / rate))
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
