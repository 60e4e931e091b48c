"""The response time under a control limit with a max wait, and MMPP(2) arrivals.

Requests are counted per start of a batch, by their age when their own batch starts. See section 8
of docs/response_times.md.
"""

import numpy as np
from numpy.typing import NDArray

from policy.response_time.distribution import AgesAtStart, ResponseTimeDistribution
from policy.response_time.mmpp_chain import MmppChain
from policy.response_time.quadrature import Panels, gauss_legendre

FloatArray = NDArray[np.float64]

_POINTS, _WEIGHTS = gauss_legendre(24)
# Widest panel, in standard deviations of the time that as many arrivals take.
_MAX_WIDTH = 0.5
# Panels for the ages of the requests behind an oldest one whose timer has run off.
_BEHIND_PANELS = 16
# Requests per start below this are not worth their own density.
_NEGLIGIBLE = 1e-9
_TINY = 1e-300


class MmppResponse(ResponseTimeDistribution):
    """The distribution of the response time under a control limit and MMPP(2) arrivals."""

    def __init__(self, chain: MmppChain) -> None:
        super().__init__()
        self._chain = chain
        panels, arriving = self._arrivals_in_a_batch()
        axis, oldest = self._count_started_at_once(panels, arriving)
        self._count_started_after_a_wait(axis, oldest)
        self.close()

    def _arrivals_in_a_batch(self) -> tuple[Panels, FloatArray]:
        """Return the density of arrivals over the time left of their batch.

        Returns
        -------
        panels : Panels
        arriving : ndarray, shape (nodes, positions, 2)
            Per start, by position in the queue from 0 and state just after the arrival.
        """
        chain, process = self._chain, self._chain.process
        times, size = chain.batch_times_ms, chain.max_batch_size
        end = chain.full_batch_ms
        jumps = np.append(times, chain.max_wait_ms % end)
        rate = 1e-3 * max(process.rates_per_s)
        width = min(end / 4, _MAX_WIDTH * (1 + np.sqrt(rate * end)) / rate)
        panels = Panels.cut(end, jumps, width)
        left = panels.nodes_ms.ravel()
        reached = process.counts_reached(end)
        positions = chain.longest + reached
        positions += -positions % size
        arriving = np.zeros((left.size, positions, 2))
        for row in range(size):
            inside = left < times[row]
            counts = process.counts(reached, times[row] - left[inside])
            arriving[inside, :reached] += np.einsum("i,gnij->gnj", chain.probabilities[row], counts)
        left_over = chain.probabilities[size:]
        if left_over.shape[0]:
            from_full = process.counts(reached, end - left)
            points = 1 << (left_over.shape[0] + reached).bit_length()
            product = np.einsum(
                "zi,gzij->gzj",
                np.fft.rfft(left_over, points, axis=0),
                np.fft.rfft(from_full, points, axis=1),
            )
            found = np.fft.irfft(product, points, axis=1)[:, : left_over.shape[0] + reached - 1]
            arriving[:, 1 : 1 + found.shape[1]] += np.maximum(found, 0.0)
        # Who would be further back is refused. As the longest queue is of whole batches, those that
        # are refused behind a request would not have changed the size of its batch.
        return panels, np.asarray(arriving[:, : chain.longest] @ process.arrivals)

    def _count_started_at_once(
        self, panels: Panels, arriving: FloatArray
    ) -> tuple[Panels, FloatArray]:
        """Count the requests whose batch starts at the very end of another.

        Returns
        -------
        axis : Panels
            Ages at the end of a batch.
        oldest : ndarray, shape (panels, order, 2)
            Density of the age of the oldest request at the end of a batch, by the state at its
            arrival, where the timer still runs.
        """
        chain, process = self._chain, self._chain.process
        size, limit, d = chain.max_batch_size, chain.control_limit, chain.max_wait_ms
        left = panels.nodes_ms.ravel()
        mass = panels.integral(arriving.sum(axis=2).T.reshape(-1, *panels.nodes_ms.shape))
        blocks = int(np.max(np.flatnonzero(mass > 1e-12), initial=0)) // size + 1
        during = process.counts(size, left)
        in_full_batch = process.counts(size, chain.full_batch_ms)
        exact = np.zeros((size, blocks, left.size))
        expired = np.zeros((max(limit - 1, 1), blocks, left.size))
        oldest = np.zeros((blocks, left.size, 2))
        late_oldest = np.zeros_like(oldest)
        # Number of arrivals in the full batches since, by the state at their start: (count, 2).
        since = np.zeros((size, 2))
        since[0] = 1.0
        for block in range(blocks):
            here = arriving[:, block * size : (block + 1) * size]
            age = left + block * chain.full_batch_ms
            behind = _convolve_matrices(during, since)
            # by_size[g, n]: requests whose batch could start with n + 1 in the queue.
            by_size = np.zeros((left.size, size))
            for position in range(size):
                by_size[:, position:] += np.einsum(
                    "gi,gni->gn", here[:, position], behind[:, : size - position]
                )
            exact[limit - 1 : size - 1, block] = by_size[:, limit - 1 : size - 1].T
            exact[size - 1, block] = here.sum(axis=(1, 2)) - by_size[:, : size - 1].sum(axis=1)
            if limit > 1:
                running = (age < d)[:, None]
                oldest[block] = np.where(running, here[:, 0], 0.0)
                late_oldest[block] = np.where(running, 0.0, here[:, 0])
                expired[:, block] = np.einsum(
                    "gi,gni->ng", late_oldest[block], behind[:, : limit - 1]
                )
            since = _convolve_matrices(in_full_batch[None], since)[0]
        axis = panels.repeated(chain.full_batch_ms * np.arange(blocks))
        shape = (size, *axis.nodes_ms.shape)
        exact[: expired.shape[0]] += expired
        self.components.append(AgesAtStart(axis, chain.batch_times_ms, exact.reshape(shape)))
        if limit > 2:
            self._count_behind_expired(
                axis, late_oldest.reshape(-1, 2), expired.reshape(limit - 1, -1)
            )
        return axis, oldest.reshape(*axis.nodes_ms.shape, 2)

    def _count_behind_expired(self, axis: Panels, oldest: FloatArray, expired: FloatArray) -> None:
        """Count the requests behind an oldest one whose timer has run off when the device is free.

        Parameters
        ----------
        axis : Panels
            Ages of the oldest.
        oldest : ndarray, shape (nodes, 2)
            Their density, by the state at the arrival of the oldest.
        expired : ndarray, shape (control_limit - 1, nodes)
            The same, by the size of the batch.
        """
        chain, process = self._chain, self._chain.process
        limit = chain.control_limit
        weights = axis.weights_ms.ravel()
        followers = np.arange(1, limit - 1) @ expired[1:] * weights
        kept = followers > _NEGLIGIBLE
        if not np.any(kept):
            return
        ages = axis.nodes_ms.ravel()
        end = float(ages[kept].max())
        panels = Panels.cut(end, np.array([chain.max_wait_ms]), end / _BEHIND_PANELS)
        w = panels.nodes_ms.ravel()
        before = np.zeros((w.size, limit - 2, 2))
        for node, younger in enumerate(w):
            older = kept & (ages > younger)
            mass = (axis.weights_from(younger).ravel()[:, None] * oldest)[older]
            mixed = process.mixed_counts(limit - 2, ages[older] - younger, mass)
            before[node] = mixed @ process.arrivals
        density = _convolve_states(before, process.counts(limit - 2, w).sum(axis=-1))
        by_size = density.T.reshape(limit - 2, *panels.nodes_ms.shape)
        # What the quadrature misses is small; the number of these requests is known.
        found = panels.integral(by_size)
        expected = np.arange(1, limit - 1) * (expired[1:] @ weights)
        by_size *= (expected / np.maximum(found, _TINY))[:, None, None]
        self.components.append(AgesAtStart(panels, chain.batch_times_ms[1 : limit - 1], by_size))

    def _count_started_after_a_wait(self, axis: Panels, oldest: FloatArray) -> None:
        """Count the requests whose batch starts after the device has been free."""
        chain, process = self._chain, self._chain.process
        limit, d, size = chain.control_limit, chain.max_wait_ms, chain.max_batch_size
        times = chain.batch_times_ms
        empty = process.counts(1, times)[:, 0]
        first = np.einsum("mi,mij->j", chain.probabilities[:size], empty @ process.next_arrival)
        if limit == 1:
            self.atoms.append((float(times[0]), float(first.sum())))
            return
        if d <= 0:
            return
        running = [axis.cumulative(oldest[..., state]) for state in range(2)]
        at_free = first + np.array([float(one.total) for one in running])
        rate = 1e-3 * max(process.rates_per_s)
        panels = Panels.cut(d, axis.edges_ms, min(d / 4, _MAX_WIDTH * np.sqrt(limit) / rate))
        w = panels.nodes_ms
        # The timer runs off: the oldest, and those behind it.
        by_timer = np.einsum("i,nij->n", at_free, process.counts(limit - 1, d))
        self.atoms.extend(
            (d + float(times[n]), float(by_timer[n])) for n in range(limit - 1) if by_timer[n] > 0
        )
        if limit > 2:
            start = np.einsum("i,...nij->...nj", at_free, process.counts(limit - 2, d - w))
            later = process.counts(limit - 2, w).sum(axis=-1)
            density = _convolve_states(start @ process.arrivals, later)
            self.components.append(
                AgesAtStart(panels, times[1 : limit - 1], np.moveaxis(density, -1, 0))
            )
        # The limit is reached: the oldest, the last, and those between.
        at_limit = process.arrivals.sum(axis=1)
        waiting = first + np.stack([one.at(w) for one in running], axis=-1)
        ended = np.einsum(
            "...i,...ij,j->...",
            waiting,
            process.counts(limit - 1, w)[..., limit - 2, :, :],
            at_limit,
        )
        self.components.append(AgesAtStart(panels, times[limit - 1 : limit], ended[None]))
        self.atoms.append((float(times[limit - 1]), float(panels.integral(ended))))
        if limit > 2:
            later = process.counts(limit - 2, w) @ at_limit  # (..., limit - 2, 2)
            density = np.zeros(w.shape)
            for point, weight in zip(_POINTS, _WEIGHTS, strict=True):
                u = point * (d - w)
                waiting = first + np.stack([one.at(u + w) for one in running], axis=-1)
                start = np.einsum("...i,...nij->...nj", waiting, process.counts(limit - 2, u))
                between = np.einsum(
                    "...nj,...nj->...", start @ process.arrivals, later[..., ::-1, :]
                )
                density += weight * (d - w) * between
            self.components.append(AgesAtStart(panels, times[limit - 1 : limit], density[None]))


def _convolve_matrices(first: FloatArray, then: FloatArray) -> FloatArray:
    """Convolve over counts, shapes (nodes, counts, 2, 2) and (counts, 2) to (nodes, counts, 2)."""
    length = then.shape[0]
    # shifted[early, j, n] = then[n - early, j]
    shifted = np.zeros((length, 2, length))
    for early in range(length):
        shifted[early, :, early:] = then[: length - early].T
    factors = np.moveaxis(first, 2, 1).reshape(-1, 2 * length)
    return np.moveaxis((factors @ shifted.reshape(2 * length, length)).reshape(-1, 2, length), 1, 2)


def _convolve_states(first: FloatArray, second: FloatArray) -> FloatArray:
    """Convolve over counts and sum over states, shapes (..., counts, 2) to (..., counts)."""
    length = first.shape[-2]
    result = np.zeros(first.shape[:-1])
    for count in range(length):
        result[..., count:] += np.einsum(
            "...j,...nj->...n", first[..., count, :], second[..., : length - count, :]
        )
    return result
