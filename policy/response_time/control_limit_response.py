"""The response time under a control limit and a max wait.

Requests are counted per start of a batch, by their age when their own batch starts:

- Requests that arrive while a batch is in service, and leave with one that starts as soon as an
  earlier one ends. At the end of the service a request has its position in the queue; behind it
  wait those that came since, a Poisson number. Positions beyond a full batch wait for full batches
  only, whatever comes.
- Where the queue is short, the oldest request decides (its timer, the control limit), and the
  others are uniform over its age.

Both are exact up to quadrature. Sections 4 and 5 of docs/response_times.md have the equations.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainccinv, pdtr

from policy.probability import convolve, poisson_pmf, poisson_table
from policy.response_time.control_limit_chain import ControlLimitChain
from policy.response_time.distribution import AgesAtStart, ResponseTimeDistribution
from policy.response_time.quadrature import Panels

FloatArray = NDArray[np.float64]

_NEGLIGIBLE = 1e-12
# A density is cut where it jumps, at the likeliest of its jumps.
_LIKELY, _MAX_JUMPS = 1e-8, 48
# Widest panel, in standard deviations of the time that as many arrivals take.
_MAX_WIDTH = 0.5


class ControlLimitResponse(ResponseTimeDistribution):
    """The distribution of the response time under a control limit."""

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

        Returns
        -------
        panels : Panels
            The time left, r.
        arriving : ndarray, shape (blocks, nodes, max_batch_size)
            Per start, by position in the queue: position ``k`` is ``[k // B, :, k % B]``, from 0.
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
        positions = chain.longest if system.waiting_room is None else system.waiting_room
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
        padded = np.zeros((left.size, blocks * size))
        padded[:, : min(positions, blocks * size)] = arriving[:, : blocks * size]
        return panels, padded.reshape(left.size, blocks, size).transpose(1, 0, 2)

    def _count_surely_in_full_batches(self, panels: Panels, arriving: FloatArray) -> FloatArray:
        """Count the requests so far back that their own batch is full; return the other blocks."""
        system = self._system
        if system.waiting_room is not None:
            return arriving
        offsets = system.full_batch_ms * np.arange(arriving.shape[0])
        too_few = pdtr(system.max_batch_size - 1, system.arrival_rate * offsets)
        unsure = int(np.count_nonzero(too_few > _NEGLIGIBLE))
        if unsure < arriving.shape[0]:
            axis = panels.repeated(offsets[unsure:])
            ages = arriving[unsure:].sum(axis=-1).reshape(1, *axis.nodes_ms.shape)
            self.components.append(AgesAtStart(axis, system.batch_times_ms[-1:], ages))
        return arriving[:unsure]

    def _count_started_at_once(
        self, panels: Panels, arriving: FloatArray
    ) -> tuple[Panels, FloatArray]:
        """Count the requests whose batch starts at the very end of another (10), (11).

        Parameters
        ----------
        panels : Panels
            The time left of the batch in which a request arrives.
        arriving : ndarray, shape (blocks, nodes, max_batch_size)
            Density of arrivals by position, as `_arrivals_in_a_batch` returns it.

        Returns
        -------
        axis : Panels
            Ages at the end of a batch.
        timer_running : ndarray, shape (panels, order)
            Density of the age of the oldest request at the end of a batch, where its timer still
            runs. These wait, unless the control limit is reached.
        """
        system = self._system
        size, limit, d = system.max_batch_size, system.control_limit, system.max_wait_ms
        residual = panels.nodes_ms.ravel()
        blocks, room = arriving.shape[0], system.waiting_room
        offsets = system.full_batch_ms * np.arange(blocks)
        age = offsets[:, None] + residual
        max_size = size if room is None else min(size, max(room, 1))
        # Requests of exactly an age, and uniform below it, by the size of their batch.
        exact = np.zeros((max_size, *age.shape))
        uniform = np.zeros_like(exact)
        timer_running = np.zeros(age.shape)
        for part, behind in self._requests_behind(residual, age, blocks):
            here = arriving[part, :, :max_size]
            fewer = np.cumsum(behind, axis=-1)
            if behind.ndim == 3:  # the same distribution at every position: a convolution
                sizes = convolve(here, behind)
                exact[limit - 1 : max_size - 1, part] = np.moveaxis(sizes, -1, 0)[
                    limit - 1 : max_size - 1
                ]
                short = fewer[..., : max_size - 1][..., ::-1]
                behind = behind[:, :, None]
            else:
                here = here[..., : behind.shape[2]]
                k = np.arange(here.shape[2])
                for n in range(limit, max_size):
                    exact[n - 1, part] = np.sum(
                        here[..., :n] * behind[:, :, k[:n], n - 1 - k[:n]], axis=-1
                    )
                k = k[: max_size - 1]
                short = fewer[:, :, k, max_size - 2 - k]
            not_full = np.sum(here[..., : max_size - 1] * short, axis=-1)
            exact[max_size - 1, part] = np.sum(here, axis=-1) - not_full
            if limit == 1:
                continue
            oldest, waiting = here[..., 0], behind[:, :, 0, : limit - 1]
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

    def _requests_behind(
        self, residual_ms: FloatArray, age_ms: FloatArray, blocks: int
    ) -> list[tuple[slice, FloatArray]]:
        """Return the distributions of the number of requests behind one, by ranges of blocks.

        Each has shape (blocks, nodes, max_batch_size), the same at every position, or, in the last
        block of a waiting room, shape (1, nodes, positions, max_batch_size).
        """
        system, room = self._system, self._system.waiting_room
        size = system.max_batch_size
        unlimited = not room or room <= size or room >= blocks * size
        whole = blocks if unlimited else blocks - 1
        parts = [(slice(0, whole), poisson_table(size, system.arrival_rate * age_ms[:whole]))]
        if room and whole < blocks:
            last = [
                system.followers(size, residual_ms, whole, position)
                for position in range(1, room - whole * size + 1)
            ]
            parts.append((slice(whole, blocks), np.stack(last, axis=1)[None]))
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
            if system.waiting_room != 0
            else 1.0
        )
        if limit == 1:
            self.atoms.append((float(system.batch_times_ms[0]), empty))
            return
        running_below = axis.cumulative(timer_running)
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
