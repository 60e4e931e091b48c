"""The response time under a control limit and a max wait.

Requests are counted per start of a batch, by their age when their own batch starts:

- Those that arrive while a batch is in service, and go with one that starts at once. At the end of
  the service a request has its position in the queue; behind it wait those who came since, a fresh
  Poisson count. Positions beyond a full batch wait for full batches only, whatever comes.
- Where the queue is short, the oldest request decides (its timer, the control limit), and the
  others are uniform over its age.

All is exact up to quadrature.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainccinv, pdtr

from policy.response_time.age_distribution import AgeMeasure, Mixture, Panels
from policy.response_time.convolution import convolve
from policy.response_time.embedded_chain import StartChain, poisson_pmf, poisson_table

FloatArray = NDArray[np.float64]

_NEGLIGIBLE = 1e-12
_LIKELY, _MOST_JUMPS = 1e-8, 48
"""A density is cut where it jumps, at the likeliest of its jumps."""

_WIDEST = 0.5
"""Widest panel, in standard deviations of the time that as many arrivals take."""


class ControlLimitResponse(Mixture):
    """The distribution of the response time under a control limit."""

    def __init__(self, chain: StartChain) -> None:
        super().__init__()
        self._chain = chain
        oldest_waiting = self._started_at_once()
        self._started_after_a_wait(*oldest_waiting)
        self.close()

    def _started_at_once(self) -> tuple[Panels, FloatArray]:
        """Count the requests whose batch starts at the very end of another.

        Returns
        -------
        panels : Panels
        oldest_waiting : ndarray, shape (panels, order)
            Density of the age of the oldest request at the end of a batch, where its timer still
            runs. These wait, unless the control limit is reached.
        """
        system = self._chain.system
        size, limit, d = system.max_batch_size, system.control_limit, system.max_wait_ms
        panels, arriving = self._arrivals_in_a_batch()
        arriving = self._surely_in_full_batches(panels, arriving)
        residual = panels.nodes_ms.ravel()
        blocks, room = arriving.shape[0], system.waiting_room
        offsets = float(system.batch_times_ms[-1]) * np.arange(blocks)
        age = offsets[:, None] + residual
        top = size if room is None else min(size, max(room, 1))
        oldest = np.zeros((top, *age.shape))
        younger = np.zeros_like(oldest)
        running = np.zeros(age.shape)
        # Behind a request wait those that came since, but for the last block of a waiting room.
        whole = blocks if not room or room <= size or room >= blocks * size else blocks - 1
        parts = [(slice(0, whole), poisson_table(size, system.arrival_rate * age[:whole]))]
        if room and whole < blocks:
            last = [
                system.followers(size, residual, whole, position)
                for position in range(1, room - whole * size + 1)
            ]
            parts.append((slice(whole, blocks), np.stack(last, axis=1)[None]))
        for part, behind in parts:
            here = arriving[part, :, :top]
            fewer = np.cumsum(behind, axis=-1)
            if behind.ndim == 3:  # the same law at every position: a convolution
                sizes = convolve(here, behind)
                oldest[limit - 1 : top - 1, part] = np.moveaxis(sizes, -1, 0)[limit - 1 : top - 1]
                short = fewer[..., : top - 1][..., ::-1]
                behind = behind[:, :, None]
            else:
                here = here[..., : behind.shape[2]]
                k = np.arange(here.shape[2])
                for n in range(limit, top):
                    oldest[n - 1, part] = np.sum(
                        here[..., :n] * behind[:, :, k[:n], n - 1 - k[:n]], axis=-1
                    )
                k = k[: top - 1]
                short = fewer[:, :, k, top - 2 - k]
            not_full = np.sum(here[..., : top - 1] * short, axis=-1)
            oldest[top - 1, part] = np.sum(here, axis=-1) - not_full
            if limit == 1:
                continue
            first, waiting = here[..., 0], behind[:, :, 0, : limit - 1]
            expired = np.where(age[part] >= d, first, 0.0)
            if np.any(expired):
                alone = np.moveaxis(expired[..., None] * waiting, -1, 0)
                oldest[: limit - 1, part] += alone
                younger[: limit - 1, part] += np.arange(limit - 1)[:, None, None] * alone
            running[part] = np.where(age[part] < d, first, 0.0)
        axis = _repeated(panels, offsets)
        shape = (top, *axis.nodes_ms.shape)
        timed = np.isfinite(d) and limit > 1
        self.measures.append(
            AgeMeasure(
                axis,
                system.batch_times_ms[:top],
                oldest.reshape(shape),
                younger.reshape(shape) if timed else None,
            )
        )
        return axis, running.reshape(shape[1:])

    def _surely_in_full_batches(self, panels: Panels, arriving: FloatArray) -> FloatArray:
        """Count the requests so far back that their own batch is full; give the other blocks."""
        system = self._chain.system
        if system.waiting_room is not None:
            return arriving
        offsets = float(system.batch_times_ms[-1]) * np.arange(arriving.shape[0])
        too_few = pdtr(system.max_batch_size - 1, system.arrival_rate * offsets)
        unsure = int(np.count_nonzero(too_few > _NEGLIGIBLE))
        if unsure < arriving.shape[0]:
            axis = _repeated(panels, offsets[unsure:])
            oldest = arriving[unsure:].sum(axis=-1).reshape(1, *axis.nodes_ms.shape)
            self.measures.append(AgeMeasure(axis, system.batch_times_ms[-1:], oldest))
        return arriving[:unsure]

    def _arrivals_in_a_batch(self) -> tuple[Panels, FloatArray]:
        """Density of arrivals over the time that is left of the batch they arrive in.

        Returns
        -------
        panels : Panels
            The time left.
        arriving : ndarray, shape (blocks, nodes, max_batch_size)
            Per start, by position in the queue: position ``k`` is ``[k // B, :, k % B]``, from 0.
        """
        chain, system = self._chain, self._chain.system
        rate, size, d = system.arrival_rate, system.max_batch_size, system.max_wait_ms
        alone = min(size, chain.longest)
        probabilities = chain.probabilities[:alone]
        times = chain.batch_times_ms[:alone]
        end = float(times[-1])
        likely = np.argsort(probabilities)[-_MOST_JUMPS:]
        jumps = times[likely[probabilities[likely] > _LIKELY]]
        if np.isfinite(d):
            jumps = np.append(jumps, d % float(system.batch_times_ms[-1]))
        widest = min(end / 4, _WIDEST * (1 + np.sqrt(rate * end)) / rate)
        panels = Panels.cut(end, jumps, widest)
        left = panels.nodes_ms.ravel()
        positions = chain.longest if system.waiting_room is None else system.waiting_room
        most = int(rate * end + 7 * np.sqrt(rate * end) + 12)
        reached = min(positions, most)
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

    def _started_after_a_wait(self, panels: Panels, oldest_waiting: FloatArray) -> None:
        """Count the requests whose batch starts after the device has been free.

        Since the arrival of the oldest, requests come as a fresh Poisson process. The control
        limit ends the wait at age ``h`` of the oldest if request number `control_limit` comes
        then; the others are uniform in between.
        """
        chain, system = self._chain, self._chain.system
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
        younger_than = panels.cumulative(oldest_waiting)
        longest = min(d, float(gammainccinv(limit - 1, 1e-16)) / rate)
        time = float(system.batch_times_ms[limit - 1])
        if longest > 0:
            waits = Panels.cut(longest, panels.edges_ms, _WIDEST * np.sqrt(limit) / rate)
            h = waits.nodes_ms
            ended = rate * poisson_pmf(limit - 2, rate * h) * (empty + younger_than.at(h))
            measure = AgeMeasure(waits, np.array([time]), ended[None], (limit - 2) * ended[None])
            self.measures.append(measure)
            self.atoms.append((time, float(waits.integral(ended))))
        if np.isfinite(d):
            running = empty + float(younger_than.at(np.array(d)))
            for younger, probability in enumerate(poisson_table(limit - 1, rate * d).tolist()):
                count = running * probability
                time = float(system.batch_times_ms[younger])
                self.atoms.append((d + time, count))
                if younger and d > 0:
                    self.uniforms.append((time, d, younger * count))


def _repeated(panels: Panels, offsets_ms: NDArray[np.floating]) -> Panels:
    """Lay the panels end to end, from each of the offsets on."""
    starts = (offsets_ms[:, None] + panels.edges_ms[:-1]).ravel()
    return Panels(np.append(starts, offsets_ms[-1] + panels.edges_ms[-1]))
