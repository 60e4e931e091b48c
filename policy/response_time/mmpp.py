r"""The response time of a control limit with a max wait, under MMPP(2) arrivals.

The state at the starts of batches is the queue length and the state of the arrival process. What
follows is as in `control_limit_chain` and `control_limit_response`, with the matrices
:math:`P_n(t)` of `policy.mmpp` in the place of Poisson probabilities, and with one simplification:
every batch of which a request is the oldest is followed from that request's arrival on.

Exact up to quadrature.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.mmpp import Mmpp
from policy.profile import Profile
from policy.response_time.distribution import AgesAtStart, ResponseTimeDistribution
from policy.response_time.quadrature import Panels, gauss_legendre

FloatArray = NDArray[np.float64]

_POINTS, _WEIGHTS = gauss_legendre(24)
_NEGLIGIBLE = 1e-9
# Longest queue at the start of a batch that is solved, and how often it may be longer.
_MAX_QUEUE, _MAX_TAIL = 1024, 1e-6
# Widest panel, in standard deviations of the time that as many arrivals take.
_MAX_WIDTH = 0.5
_BEHIND_PANELS = 16
_TINY = 1e-300


@dataclass(frozen=True, eq=False)
class MmppEvaluation:
    """What a control limit achieves under MMPP arrivals.

    Attributes
    ----------
    mean_batch_size : float
    mean_power_w : float or None
        None if the profile has no energy.
    device_busy_fraction : float
        Fraction of the time in which a batch is in service.
    response_times : ResponseTimeDistribution
    """

    mean_batch_size: float
    mean_power_w: float | None
    device_busy_fraction: float
    _chain: "MmppChain"

    @cached_property
    def response_times(self) -> ResponseTimeDistribution:
        """The distribution; computed on first use."""
        return MmppResponse(self._chain)

    def service_level(self, response_time_ms: float) -> float:
        """Return the fraction of requests answered within a response time."""
        return float(self.response_times.cdf(np.array([response_time_ms]))[0])

    def response_percentile_ms(self, percentile: float) -> float:
        """Return the least time within which `percentile` percent of requests are answered."""
        return self.response_times.quantile(percentile / 100)


def evaluate_mmpp(profile: Profile, policy: BatchingPolicy, process: Mmpp) -> MmppEvaluation:
    """Evaluate a control limit with a max wait under MMPP(2) arrivals.

    Parameters
    ----------
    profile : Profile
        Batch times, and energies if known.
    policy : BatchingPolicy
        A control limit that starts all that wait; above 1 it needs a max wait.
    process : Mmpp
        The arrivals.

    Raises
    ------
    InvalidInputError
        The policy is no such control limit, or starts larger batches than the profile has.
    InfeasibleError
        The device cannot keep up, or bursts make the queue longer than is computed.
    """
    limit, size = policy.control_limit, policy.max_batch_size
    if policy.actions != BatchingPolicy.from_control_limit(limit, size).actions:
        raise InvalidInputError("policy: must be a control limit that starts all that wait")
    if limit > 1 and policy.max_wait_ms is None:
        raise InvalidInputError("policy: a control limit above 1 needs a max wait")
    if size > profile.max_batch_size:
        raise InvalidInputError(
            f"policy: starts batches of {size}, but the profile ends at {profile.max_batch_size}"
        )
    times = profile.latency_ms[:size]
    capacity_per_s = 1e3 * size / float(times[-1])
    if process.mean_rate_per_s >= capacity_per_s:
        raise InfeasibleError(
            f"arrival rate {process.mean_rate_per_s:g}/s: the policy serves at most "
            f"{capacity_per_s:.6g}/s"
        )
    queue = 4 * size
    while True:
        chain = MmppChain(process, times, limit, policy.max_wait_ms or 0.0, queue)
        tail = float(chain.probabilities[-size:].sum())
        if tail < _NEGLIGIBLE or queue >= _MAX_QUEUE:
            break
        queue *= 2
    if tail > _MAX_TAIL:
        raise InfeasibleError("bursts: the queue grows too long to be computed")
    sizes = np.minimum(np.arange(1, queue + 1), size)
    by_size = np.bincount(sizes, chain.probabilities.sum(axis=1), size + 1)[1:]
    mean_size = float(by_size @ np.arange(1, size + 1))
    ms_per_start = 1e3 * mean_size / process.mean_rate_per_s
    energy = profile.energy_mj
    return MmppEvaluation(
        mean_batch_size=mean_size,
        mean_power_w=None if energy is None else float(by_size @ energy[:size]) / ms_per_start,
        device_busy_fraction=float(by_size @ times) / ms_per_start,
        _chain=chain,
    )


class MmppChain:
    """Queue length and state of the arrivals at the starts of batches.

    Attributes
    ----------
    probabilities : ndarray of float, shape (longest, 2)
        Stationary probabilities; row ``m - 1`` is a queue of ``m``. The last stands for all beyond.
    """

    def __init__(
        self,
        process: Mmpp,
        batch_times_ms: FloatArray,
        control_limit: int,
        max_wait_ms: float,
        longest: int,
    ) -> None:
        self.process = process
        self.batch_times_ms = batch_times_ms
        self.control_limit = control_limit
        self.max_wait_ms = max_wait_ms
        self.longest = longest
        self.max_batch_size: int = batch_times_ms.size
        self.full_batch_ms = float(batch_times_ms[-1])
        self._at_timer = process.counts(max(control_limit - 1, 0), max_wait_ms)
        self._limit_by_timer = self.limit_reached(np.array(max_wait_ms), self._at_timer)
        transitions = self._transitions().reshape(2 * longest, 2 * longest)
        balance = np.eye(2 * longest) - transitions.T
        balance[-1] = 1.0
        right = np.zeros(2 * longest)
        right[-1] = 1.0
        self.probabilities = np.linalg.solve(balance, right).reshape(longest, 2)

    def limit_reached(self, times_ms: FloatArray, counts: FloatArray) -> FloatArray:
        """Return the probability that the control limit is reached within times of the oldest.

        Parameters
        ----------
        times_ms : ndarray of float, shape (...)
        counts : ndarray of float, shape (..., control_limit - 1, 2, 2)
            P_n(t) at these times.

        Returns
        -------
        ndarray of float, shape (..., 2, 2)
            By the state at the arrival of the oldest, and the state when the limit is reached.
        """
        process = self.process
        mean_time = np.linalg.inv(-process.no_arrivals)
        # The integrals of P_n from 0 to t, one after the other, from the equations of their slopes.
        integral = np.zeros((*times_ms.shape, 2, 2))
        for n in range(self.control_limit - 1):
            before = np.eye(2) if n == 0 else integral @ process.arrivals
            integral = (before - counts[..., n, :, :]) @ mean_time
        return np.asarray(integral @ process.arrivals)

    def _transitions(self) -> FloatArray:
        """Return the transition probabilities, shape (longest, 2, longest, 2)."""
        process, limit, size = self.process, self.control_limit, self.max_batch_size
        times, longest = self.batch_times_ms, self.longest
        rows = np.zeros((longest, 2, longest, 2))
        reached = min(longest, process.counts_reached(self.full_batch_ms))
        at_end = process.counts(reached, times)  # (size, count, 2, 2)
        rows[:size, :, : reached - 1] = at_end[:, 1:].transpose(0, 2, 1, 3)
        for left in range(1, longest - size + 1):
            count = min(reached, longest - left + 1)
            rows[size + left - 1, :, left - 1 : left - 1 + count] = at_end[-1, :count].transpose(
                1, 0, 2
            )
        # The device is free and nobody waits: the next arrival is the oldest.
        first = at_end[:, 0] @ process.next_arrival
        if limit == 1:
            rows[:size, :, 0] += first
        else:
            rows[:size, :, : limit - 1] += np.einsum("mij,njk->mink", first, self._at_timer)
            rows[:size, :, limit - 1] += first @ self._limit_by_timer
            self._correct_running_timers(rows)
        lost = process.states_after(self._row_times())
        if limit == 1:
            lost = lost - rows.sum(axis=2)
            lost[:size] += first - at_end[:, 0]
        else:
            lost = lost.sum(axis=-1) - rows.sum(axis=(2, 3))
            # Beyond the longest queue the states of a long batch are as good as stationary.
            lost = lost[..., None] * process.state_probabilities
        if longest > size:
            rows[:, :, -1] += np.maximum(lost, 0.0)
        return rows

    def _row_times(self) -> FloatArray:
        sizes = np.minimum(np.arange(1, self.longest + 1), self.max_batch_size)
        return self.batch_times_ms[sizes - 1]

    def _correct_running_timers(self, rows: FloatArray) -> None:
        """Account for batch ends at which the timer of the oldest still runs.

        The oldest arrived when `r` was left of its batch, with whole full batches before it; behind
        it are those that came since. `rows` has the device start at once.
        """
        process, limit, size = self.process, self.control_limit, self.max_batch_size
        d, full_ms, times = self.max_wait_ms, self.full_batch_ms, self.batch_times_ms
        i = 0
        while i * full_ms < d and i * size < self.longest:
            ends = np.minimum(times, d - i * full_ms)
            r = ends[:, None] * _POINTS
            age = r + i * full_ms
            at_end = process.counts(limit - 1, age)
            less = self._at_timer - at_end  # (size, points, limit - 1, 2, 2)
            reach = self._limit_by_timer - self.limit_reached(age, at_end)
            weights = ends[:, None, None, None] * _WEIGHTS[:, None, None]
            before = process.counts(i * size + 1, times[:, None] - r) @ process.arrivals
            of_row = weights * before[:, :, i * size]
            rows[:size, :, : limit - 1] += np.einsum("mgij,mgnjk->mink", of_row, less)
            rows[:size, :, limit - 1] += np.einsum("mgij,mgjk->mik", of_row, reach)
            left = np.arange(1, min(i * size, self.longest - size) + 1)
            if left.size:
                of_left = weights[-1][:, None] * before[-1][:, i * size - left]
                rows[size + left - 1, :, : limit - 1] += np.einsum(
                    "glij,gnjk->link", of_left, less[-1]
                )
                rows[size + left - 1, :, limit - 1] += np.einsum(
                    "glij,gjk->lik", of_left, reach[-1]
                )
            i += 1


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
        return panels, np.asarray(arriving @ process.arrivals)

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
            behind = np.zeros((left.size, size, 2))
            for early in range(size):
                behind[:, early:] += np.einsum(
                    "gij,nj->gni", during[:, early], since[: size - early]
                )
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
            since = sum(
                np.einsum(
                    "ij,nj->ni",
                    in_full_batch[early],
                    np.concatenate([np.zeros((early, 2)), since[: size - early]]),
                )
                for early in range(size)
            )
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
        kept = followers > 1e-9
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
            counts = process.counts(limit - 2, ages[older] - younger)
            before[node] = np.einsum("gi,gnij->nj", mass, counts) @ process.arrivals
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


def _convolve_states(first: FloatArray, second: FloatArray) -> FloatArray:
    """Convolve over counts and sum over states, shapes (..., counts, 2) to (..., counts)."""
    length = first.shape[-2]
    result = np.zeros(first.shape[:-1])
    for count in range(length):
        result[..., count:] += np.einsum(
            "...j,...nj->...n", first[..., count, :], second[..., : length - count, :]
        )
    return result
