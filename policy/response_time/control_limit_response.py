"""The response time under a control limit and a max wait.

Requests are counted per start of a batch, by their age when their own batch starts:

- Requests that arrive while a batch is in service, and leave with one that starts as soon as an
  earlier one ends. At the end of the service a request has its position in the queue; behind it
  wait those that came since, a Poisson number. Positions beyond a full batch wait for full batches
  only, whatever comes.
- Where the queue is short, the oldest request decides (its timer, the control limit), and the
  others are uniform over its age.

Both are exact up to quadrature. docs/policy.md has the equations.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainccinv, pdtr

from policy.numerics.probability import convolve, poisson_pmf, poisson_table
from policy.numerics.quadrature import CumulativeIntegral, Panels
from policy.response_time.control_limit_chain import ControlLimitChain
from policy.response_time.distribution import (
    AgesAtStart,
    AgesInFullBatches,
    ResponseTimeDistribution,
)

FloatArray = NDArray[np.float64]

_NEGLIGIBLE = 1e-12
# A density is cut where it jumps, at the likeliest of its jumps.
_LIKELY, _MAX_JUMPS = 1e-8, 48
# Widest panel, in standard deviations of the time that as many arrivals take.
_MAX_WIDTH = 0.5


class ControlLimitResponse(ResponseTimeDistribution):
    def __init__(self, chain: ControlLimitChain) -> None:
        super().__init__()
        self._chain = chain
        self._system = chain.system
        panels, arriving = self._arrivals_in_a_batch()
        arriving = self._count_surely_in_full_batches(panels, arriving)
        axis, timer_running = self._count_started_at_once(panels, arriving)
        self._count_started_after_a_wait(axis, timer_running)
        self.close()

    def _arrivals_in_a_batch(self) -> tuple[Panels, FloatArray]:
        """Return the density of arrivals over the time that is left of their batch (9).

        It is per start, shape (blocks, nodes, max_batch_size), by position in the queue: position
        ``k`` is ``[k // B, :, k % B]``, from 0.
        """
        chain, system = self._chain, self._system
        rate, size, d = system.arrival_rate, system.max_batch_size, system.max_wait_ms
        alone = min(size, chain.longest)  # up to here a batch leaves nobody
        probabilities = chain.probabilities[:alone]
        times = chain.batch_times_ms[:alone]
        end = float(times[-1])
        likely = np.argsort(probabilities)[-_MAX_JUMPS:]
        jumps = times[likely[probabilities[likely] > _LIKELY]]
        if np.isfinite(d):
            jumps = np.append(jumps, d % system.full_batch_ms)
        max_width = min(end / 4, _MAX_WIDTH * (1 + np.sqrt(rate * end)) / rate)
        panels = Panels.cut(end, jumps, max_width)
        left = panels.nodes_ms.ravel()
        positions = chain.longest if system.max_queue_rows is None else system.max_queue_rows
        max_arrivals = int(rate * end + 7 * np.sqrt(rate * end) + 12)
        reached = min(positions, max_arrivals)
        arriving = np.zeros((left.size, positions))
        sizes = np.flatnonzero(probabilities > _NEGLIGIBLE * 1e2)
        elapsed = times[sizes] - left[:, None]
        node, which = np.nonzero(elapsed > 0)
        counts = poisson_table(reached, rate * elapsed[node, which])
        counts *= probabilities[sizes[which], None]
        first = np.flatnonzero(np.diff(node, prepend=-1))
        arriving[node[first], :reached] = np.add.reduceat(counts, first, axis=0)
        if chain.longest > size:
            left_over = np.concatenate(([0.0], chain.probabilities[size:]))
            from_full = convolve(left_over, poisson_table(reached, rate * (end - left)))
            reached = min(positions, from_full.shape[1])
            arriving[:, :reached] += from_full[:, :reached]
        arriving *= rate
        mass = panels.integral(arriving.T.reshape(positions, *panels.nodes_ms.shape))
        blocks = max(1, int(np.max(np.flatnonzero(mass > _NEGLIGIBLE), initial=0)) // size + 1)
        self._continues = blocks >= chain.complete_blocks
        if self._continues:
            blocks = chain.complete_blocks
        padded = np.zeros((left.size, blocks * size))
        padded[:, : min(positions, blocks * size)] = arriving[:, : blocks * size]
        return panels, padded.reshape(left.size, blocks, size).transpose(1, 0, 2)

    def _count_surely_in_full_batches(self, panels: Panels, arriving: FloatArray) -> FloatArray:
        """Count the requests so far back that their own batch is full; return the other blocks."""
        system = self._system
        if system.max_queue_rows is not None:
            return arriving
        offsets = system.full_batch_ms * np.arange(arriving.shape[0])
        too_few = pdtr(system.max_batch_size - 1, system.arrival_rate * offsets)
        unsure = int(np.count_nonzero(too_few > _NEGLIGIBLE))
        if unsure < arriving.shape[0]:
            ages = arriving[unsure:].sum(axis=-1).reshape(-1, *panels.nodes_ms.shape)
            log_ratio = -system.tail_decay * system.max_batch_size if self._continues else -np.inf
            self.components.append(
                AgesInFullBatches(panels, ages, system.full_batch_ms, unsure, log_ratio)
            )
        return arriving[:unsure]

    def _count_started_at_once(
        self, panels: Panels, arriving: FloatArray
    ) -> tuple[Panels, FloatArray]:
        """Count the requests whose batch starts at the very end of another (10), (11).

        Returns the density of the age of the oldest request at the end of a batch, shape (panels,
        order), where its timer still runs. These wait, unless the control limit is reached.
        """
        system = self._system
        size, limit, d = system.max_batch_size, system.control_limit, system.max_wait_ms
        residual = panels.nodes_ms.ravel()
        blocks, room = arriving.shape[0], system.max_queue_rows
        offsets = system.full_batch_ms * np.arange(blocks)
        age = offsets[:, None] + residual
        max_size = size if room is None else min(size, max(room, 1))
        # Requests of exactly an age, and uniform below it, by the size of their batch.
        exact = np.zeros((max_size, *age.shape))
        uniform = np.zeros_like(exact)
        timer_running = np.zeros(age.shape)
        for part, sizes, waiting in self._queues_at_end(residual, age, arriving):
            # `sizes` is by the length of the queue, from 1.
            started = sizes[..., limit - 1 : max_size - 1]
            exact[limit - 1 : max_size - 1, part] = np.moveaxis(started, -1, 0)
            not_full = np.sum(sizes[..., : max_size - 1], axis=-1)
            exact[max_size - 1, part] = np.maximum(arriving[part].sum(axis=-1) - not_full, 0.0)
            if limit == 1:
                continue
            oldest = arriving[part, :, 0]
            expired = np.where(age[part] >= d, oldest, 0.0)
            if np.any(expired):
                by_size = np.moveaxis(expired[..., None] * waiting, -1, 0)
                exact[: limit - 1, part] += by_size
                uniform[: limit - 1, part] += np.arange(limit - 1)[:, None, None] * by_size
            timer_running[part] = np.where(age[part] < d, oldest, 0.0)
        axis = panels.repeated(offsets)
        shape = (max_size, *axis.nodes_ms.shape)
        timed = np.isfinite(d) and limit > 1
        self.components.append(
            AgesAtStart(
                axis,
                system.batch_times_ms[:max_size],
                exact.reshape(shape),
                uniform.reshape(shape) if timed else None,
            )
        )
        return axis, timer_running.reshape(shape[1:])

    def _queues_at_end(
        self, residual_ms: FloatArray, age_ms: FloatArray, arriving: FloatArray
    ) -> list[tuple[slice, FloatArray, FloatArray]]:
        """Return the queue that each request finds itself in when its own batch may start.

        Returns
        -------
        list of (part, lengths, behind_oldest)
            By ranges of blocks. `lengths`, shape (blocks, nodes, lengths), is the density of the
            requests by the length of the queue, from 1. `behind_oldest`, shape (blocks, nodes,
            control_limit - 1), is the distribution of the requests behind one at the event loop.
        """
        system, room = self._system, self._system.max_queue_rows
        size, rate, others = system.max_batch_size, system.arrival_rate, system.control_limit - 1
        blocks = arriving.shape[0]
        unlimited = not room or room <= size or room >= blocks * size
        whole = blocks if unlimited else blocks - 1
        behind = poisson_table(size, rate * age_ms[:whole])
        first = slice(0, whole)
        parts = [(first, convolve(arriving[first], behind), behind[..., :others])]
        if room and whole < blocks:
            # At the end of the batch in which they arrive the queue may have filled the room.
            places = room - whole * size
            here = arriving[whole, :, :places]
            at_end = convolve(here, poisson_table(places, rate * residual_ms))[:, :places]
            at_end[:, -1] = np.maximum(here.sum(axis=-1) - at_end[:, :-1].sum(axis=-1), 0.0)
            later = poisson_pmf(np.arange(size), rate * whole * system.full_batch_ms)
            lengths = convolve(at_end, later)
            followers = system.followers(others, residual_ms, whole, 1)
            parts.append((slice(whole, blocks), lengths[None], followers[None]))
        return parts

    def _count_started_after_a_wait(self, axis: Panels, timer_running: FloatArray) -> None:
        """Count the requests whose batch starts after the device has been free (14) to (16).

        Since the arrival of the oldest, requests come as a fresh Poisson process. The control
        limit ends the wait at age ``h`` of the oldest if request number `control_limit` comes
        then; those between are uniform over ``h``.
        """
        chain, system = self._chain, self._system
        rate, limit, d = system.arrival_rate, system.control_limit, system.max_wait_ms
        alone = chain.left_over == 0
        empty = float(
            chain.probabilities[alone] @ np.exp(-rate * chain.batch_times_ms[alone])
            if system.max_queue_rows != 0
            else 1.0
        )
        if limit == 1:
            self.atoms.append((float(system.batch_times_ms[0]), empty))
            return
        running_below = CumulativeIntegral(axis, timer_running)
        longest = min(d, float(gammainccinv(limit - 1, 1e-16)) / rate)
        batch_time_ms = float(system.batch_times_ms[limit - 1])
        if longest > 0:
            waits = Panels.cut(longest, axis.edges_ms, _MAX_WIDTH * np.sqrt(limit) / rate)
            h = waits.nodes_ms
            ended = rate * poisson_pmf(limit - 2, rate * h) * (empty + running_below.at(h))
            ages = AgesAtStart(
                waits, np.array([batch_time_ms]), ended[None], (limit - 2) * ended[None]
            )
            self.components.append(ages)
            self.atoms.append((batch_time_ms, float(waits.integral(ended))))
        if np.isfinite(d):
            running = empty + float(running_below.at(np.array(d)))
            for younger, probability in enumerate(poisson_table(limit - 1, rate * d).tolist()):
                count = running * probability
                batch_time_ms = float(system.batch_times_ms[younger])
                self.atoms.append((d + batch_time_ms, count))
                if younger and d > 0:
                    self.uniforms.append((batch_time_ms, d, younger * count))
