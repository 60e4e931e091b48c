"""The response time under any table of actions: batches may leave requests behind.

A request is followed from batch to batch by its position in the queue and the number behind it, at
quadrature points of the time that was left of the batch in which it arrived. That is slower than
under a control limit (`control_limit_response`), and as exact, but for one thing: with a max wait,
where the oldest request waits at a free device, the others are taken as uniform over its age.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from policy.errors import InvalidInputError
from policy.response_time.age_distribution import QUADRATURE, AgeMeasure, Mixture, Panels
from policy.response_time.convolution import convolve
from policy.response_time.embedded_chain import QueueSystem, poisson_pmf, poisson_table, stationary
from policy.response_time.waiting_time import TimedWait, Wait, WaitForOne

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

_NEGLIGIBLE = 1e-10
_ROUNDS = 60


@dataclass(frozen=True)
class TableSystem(QueueSystem):
    """A device under a table of actions, with Poisson arrivals.

    Attributes
    ----------
    actions : tuple of int
        Batch size to start, by queue length; the last entry holds for all beyond.
    """

    actions: tuple[int, ...]

    def batch_size(self, queue_length: IntArray) -> IntArray:
        """Batch size to start at each queue length."""
        return np.array(self.actions)[np.minimum(queue_length, len(self.actions) - 1)]

    def longest_queue(self) -> int:
        """Queue length at a start that is all but never exceeded."""
        return super().longest_queue() + (len(self.actions) if self.waiting_room is None else 0)

    @cached_property
    def starts_at(self) -> dict[int, int]:
        """Queue length at which a wait ends, by each at which a free device waits."""
        starts, start = {}, len(self.actions) - 1
        for length in range(len(self.actions) - 1, -1, -1):
            if self.actions[length]:
                start = length
            else:
                starts[length] = start
        return starts

    def check(self) -> None:
        """Refuse tables whose waits end with requests left behind, or not at all.

        Raises
        ------
        InvalidInputError
            The table is such.
        """
        for length, start in self.starts_at.items():
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


class TableChain:
    """Stationary probabilities of the queue length at the starts of batches, under a table.

    With a max wait, how a wait ends depends on the age of the oldest request, which follows from
    the probabilities sought: they are found by iteration.

    Attributes
    ----------
    probabilities, batch_sizes, served_per_start, refused_per_start, ms_per_start
        As of `StartChain`.
    """

    def __init__(self, system: TableSystem) -> None:
        system.check()
        self.system = system
        self.longest = system.longest_queue()
        lengths = np.arange(1, self.longest + 1)
        # Where the table waits, a start takes all: the timer has run off.
        sizes = system.batch_size(lengths)
        self.batch_sizes = np.where(sizes > 0, sizes, np.minimum(lengths, system.max_batch_size))
        self.left_over = lengths - self.batch_sizes
        self.batch_times_ms = system.batch_times_ms[self.batch_sizes - 1]
        rows, self._reached = system.solved(self.longest)
        room = self._reached if system.waiting_room is None else system.waiting_room
        counts = np.arange(room + 1)
        means = system.arrival_rate * self.batch_times_ms[:rows, None]
        # Queue lengths at a batch's end, by that at its start.
        self._ends = poisson_pmf(counts - self.left_over[:rows, None], means)
        if rows == self._reached:
            self._ends[:, room] = np.maximum(0.0, 1.0 - self._ends[:, :room].sum(axis=1))
        self._solve({length: {start: 1.0} for length, start in system.starts_at.items()})
        if np.isfinite(system.max_wait_ms):
            for _ in range(_ROUNDS):
                before = self.probabilities
                self._solve(self._wait_ends())
                if np.abs(self.probabilities - before).max() < _NEGLIGIBLE:
                    break
        self.served_per_start = float(self.probabilities @ self.batch_sizes)
        refused = system.mean_refused(self.left_over, self.batch_times_ms)
        self.refused_per_start = float(self.probabilities @ refused)
        self.ms_per_start = (self.served_per_start + self.refused_per_start) / system.arrival_rate

    def at_batch_end(self) -> FloatArray:
        """Probabilities of the queue length at the end of a batch, from 0 on."""
        return np.asarray(self.probabilities[: self._ends.shape[0]] @ self._ends)

    def _solve(self, wait_ends: dict[int, dict[int, float]]) -> None:
        transitions = np.zeros((self._ends.shape[0], self._reached))
        for length in range(self._ends.shape[1]):
            for start, probability in wait_ends.get(length, {length: 1.0}).items():
                transitions[:, start - 1] += self._ends[:, length] * probability
        probabilities = stationary(transitions, self.system.tail())
        self.probabilities = self.system.extended(probabilities, self.longest)

    def _wait_ends(self) -> dict[int, dict[int, float]]:
        """Queue length at the start that ends a wait, by that at its beginning."""
        system = self.system
        rate, d = system.arrival_rate, system.max_wait_ms
        ages: dict[int, list[tuple[FloatArray, FloatArray]]] = {1: []}
        for follow in follow_requests(self):
            for length, weights in follow.oldest_waiting(system):
                ages.setdefault(length, []).append((follow.ages_ms, weights))
        ends: dict[int, dict[int, float]] = {}
        for length, start in system.starts_at.items():
            first = max(length, 1)
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
class Follow:
    """Requests at the end of a batch, at equal time since the batch in which they arrived.

    Attributes
    ----------
    panels : Panels
        Their ages.
    weights : ndarray, shape (positions, followers, nodes)
        Density of the request at position ``k`` (from 1) with ``j`` behind it: ``[k - 1, j]``.
    queue_lengths, batch_sizes : ndarray of int, shape (positions, followers)
        The queue length, and what the device then does.
    """

    panels: Panels
    weights: FloatArray
    queue_lengths: IntArray
    batch_sizes: IntArray

    @property
    def ages_ms(self) -> FloatArray:
        """Ages, shape (nodes,)."""
        return self.panels.nodes_ms.ravel()

    def integrated(self, weights: FloatArray) -> FloatArray:
        """Turn densities over the nodes, shape (..., nodes), into masses."""
        masses = weights.reshape(*weights.shape[:-1], *self.panels.nodes_ms.shape) * (
            QUADRATURE * self.panels.widths_ms[:, None]
        )
        return np.asarray(masses.reshape(weights.shape))

    def oldest_waiting(self, system: TableSystem) -> Iterator[tuple[int, FloatArray]]:
        """Give the masses of the oldest request, by the queue length at which the device waits."""
        for followers in np.flatnonzero(self.batch_sizes[0] == 0):
            length = int(self.queue_lengths[0, followers])
            if length in system.starts_at:
                yield length, self.integrated(self.weights[0, followers])


def follow_requests(chain: TableChain) -> Iterator[Follow]:
    """Follow the requests that arrive while a batch is in service, from batch end to batch end."""
    system = chain.system
    size, rate, room = system.max_batch_size, system.arrival_rate, system.waiting_room
    panels, arriving = _arrivals_in_a_batch(chain)
    left = panels.nodes_ms.ravel()
    positions = arriving.shape[0]
    # From this queue length on all batches are full: who is further back waits for those only.
    settled = max(len(system.actions) - 1, size) if room is None else max(room, 1)
    followers = 2 * settled + size if room is None else settled
    full_ms = float(system.batch_times_ms[-1])
    j = np.arange(followers)
    pending: dict[float, FloatArray] = {}
    for position in range(positions):
        passed = max(0, -(-(position + 1 - settled) // size))
        offset = round(passed * full_ms, 9)
        weights = pending.setdefault(offset, np.zeros((settled, followers, left.size)))
        here = position - passed * size
        law = poisson_table(followers, rate * (offset + left))
        weights[here] += (arriving[position, :, None] * _capped(law, room, here)).T
    lengths = np.arange(1, settled + 1)[:, None] + j
    sizes = system.batch_size(lengths)
    k = np.arange(1, settled + 1)[:, None]
    while pending:
        offset = min(pending)
        weights = pending.pop(offset)
        shifted = Panels(panels.edges_ms + offset)
        follow = Follow(shifted, weights, lengths, sizes)
        yield follow
        for taken in np.unique(sizes[(sizes > 0) & (sizes < k)]):
            stays = np.where(((sizes == taken) & (k > taken))[..., None], weights, 0.0)[taken:]
            if np.abs(follow.integrated(stays)).sum() < _NEGLIGIBLE:
                continue
            time_ms = float(system.batch_times_ms[taken - 1])
            joined = poisson_pmf(j - j[:, None], rate * time_ms)
            later = pending.setdefault(
                round(offset + time_ms, 9), np.zeros((settled, followers, left.size))
            )
            for here in range(stays.shape[0]):
                later[here] += _capped(joined, room, here).T @ stays[here]


def _capped(law: FloatArray, room: int | None, position: int) -> FloatArray:
    """Put what does not fit behind `position` (from 0) on the longest queue that does."""
    law = law.copy()
    last = law.shape[-1] - 1 if room is None else max(room - position - 1, 0)
    law[..., last] = np.maximum(0.0, 1.0 - law[..., :last].sum(axis=-1))
    law[..., last + 1 :] = 0.0
    return law


def _arrivals_in_a_batch(chain: TableChain) -> tuple[Panels, FloatArray]:
    """Density of arrivals, by position, over the time that is left of their batch."""
    system = chain.system
    rate, d = system.arrival_rate, system.max_wait_ms
    positions = chain.longest if system.waiting_room is None else system.waiting_room
    likely = np.zeros(system.max_batch_size + 1)
    np.add.at(likely, chain.batch_sizes, chain.probabilities)
    sizes = np.flatnonzero(likely > _NEGLIGIBLE * 1e-2)
    times = system.batch_times_ms[sizes - 1]
    end = float(times[-1])
    jumps = times
    if np.isfinite(d):
        sums = np.add.outer(np.arange(4) * times[-1], np.append(0.0, times)).ravel()
        jumps = np.append(jumps, (d - sums)[(d > sums) & (d - sums < end)][:64])
    panels = Panels.cut(end, jumps, min(end / 4, (1 + np.sqrt(rate * end)) / rate))
    left = panels.nodes_ms.ravel()
    most = int(rate * end + 10 * np.sqrt(rate * end) + 30)
    arriving = np.zeros((positions, left.size))
    for batch_size, time_ms in zip(sizes, times, strict=True):
        here = chain.batch_sizes == batch_size
        left_over = np.zeros(positions + 1)
        np.add.at(left_over, chain.left_over[here], chain.probabilities[here])
        inside = left < time_ms
        counts = poisson_table(min(positions, most), rate * (time_ms - left[inside]))
        if left_over[1:].any():
            counts = convolve(counts, left_over)[:, :positions]
        else:
            counts = left_over[0] * counts
        arriving[: counts.shape[1], inside] += rate * counts.T
    return panels, arriving


class TableResponse(Mixture):
    """The distribution of the response time under a table of actions."""

    def __init__(self, chain: TableChain) -> None:
        super().__init__()
        system = chain.system
        self._system = system
        timed = np.isfinite(system.max_wait_ms)
        for follow in follow_requests(chain):
            self._started_at_once(follow)
            if timed:
                for length, masses in follow.oldest_waiting(system):
                    self._timed(length, follow.ages_ms, masses)
            else:
                self._waiting(follow)
        at_end = chain.at_batch_end()
        one_ms = float(system.batch_times_ms[0])
        for length, start in system.starts_at.items():
            if length >= at_end.size:
                continue
            probability = np.array([at_end[length]])
            if length == 0 and start == 1:
                self.atoms.append((one_ms, at_end[0]))
            elif length == 0 and timed:
                self._timed(1, np.zeros(1), probability)
            elif not timed:
                for missing in range(start - length):
                    self._add_wait(np.zeros(1), probability, missing, start)
        self.close()

    def _started_at_once(self, follow: Follow) -> None:
        k = np.arange(1, follow.batch_sizes.shape[0] + 1)[:, None]
        served = follow.batch_sizes >= k
        sizes = np.unique(follow.batch_sizes[served])
        if sizes.size:
            rows = [
                follow.weights[served & (follow.batch_sizes == size)].sum(axis=0) for size in sizes
            ]
            shape = (sizes.size, *follow.panels.nodes_ms.shape)
            times = self._system.batch_times_ms[sizes - 1]
            measure = AgeMeasure(follow.panels, times, np.array(rows).reshape(shape))
            if measure.count > _NEGLIGIBLE:
                self.measures.append(measure)

    def _waiting(self, follow: Follow) -> None:
        """Count requests that wait for others, without a timer."""
        for length, start in self._system.starts_at.items():
            here = (follow.queue_lengths == length) & (follow.batch_sizes == 0)
            weights = follow.weights[here].sum(axis=0)
            if start - length == 1:
                time_ms = float(self._system.batch_times_ms[start - 1])
                wait = WaitForOne(self._system.arrival_rate, follow.panels, weights, time_ms)
                self.measures.append(wait)
            else:
                masses = follow.integrated(weights)
                self._add_wait(follow.ages_ms, masses, start - length, start)

    def _add_wait(self, ages: FloatArray, masses: FloatArray, missing: int, start: int) -> None:
        time_ms = float(self._system.batch_times_ms[start - 1])
        if missing == 0:
            self.atoms.append((time_ms, float(masses.sum())))
        elif masses.sum() > _NEGLIGIBLE:
            rate = self._system.arrival_rate
            self.measures.append(Wait(rate, ages, masses, missing, time_ms))

    def _timed(self, length: int, ages: FloatArray, masses: FloatArray) -> None:
        """Count the requests of a queue whose oldest waits, or has waited long enough."""
        if masses.sum() <= _NEGLIGIBLE:
            return
        times = self._system.batch_times_ms
        expired = (ages >= self._system.max_wait_ms) & (masses > 0)
        time_ms = float(times[length - 1])
        for age, mass in zip(ages[expired], masses[expired], strict=True):
            self.atoms.append((age + time_ms, mass))
            if length > 1:
                self.uniforms.append((time_ms, age, (length - 1) * mass))
        running = ~expired & (masses > 0)
        if np.any(running):
            start = self._system.starts_at[length]
            self.measures.append(
                TimedWait(self._system, ages[running], masses[running], length, start)
            )
