"""The response-time distribution of a batching policy, without simulation.

One device, Poisson arrivals, first come first served, batch times fixed by the batch size.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.signal import fftconvolve
from scipy.special import gammainccinv

from policy.age_measure import AgeMeasure, Panels
from policy.batching_policy import BatchingPolicy
from policy.profile import Profile
from policy.start_chain import ControlLimitSystem, StartChain, poisson_pmf
from sojourn.errors import InfeasibleError, InvalidInputError

FloatArray = NDArray[np.float64]

_NEGLIGIBLE = 1e-12
_MOST_JUMPS = 48


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a batching policy does at an arrival rate.

    Attributes
    ----------
    arrival_rate_per_s : float
        Poisson arrivals, those refused included.
    mean_power_w : float or None
        None if the profile has no energy.
    batch_size_probabilities : ndarray of float, shape (max_batch_size + 1,)
        Entry ``b``: fraction of the batches that have size ``b``.
    full_probability : float
        Fraction of the requests that find no room; 0 without a waiting room.
    device_busy_fraction : float
        Fraction of the time in which a batch is in service.
    """

    arrival_rate_per_s: float
    mean_power_w: float | None
    batch_size_probabilities: FloatArray
    full_probability: float
    device_busy_fraction: float
    _chain: StartChain

    @cached_property
    def _distribution(self) -> "ResponseTimes":
        return ResponseTimes(self._chain)

    @property
    def mean_response_ms(self) -> float:
        """Mean time from arrival to the end of the batch, of accepted requests."""
        return self._distribution.mean_ms

    def cdf(self, response_time_ms: ArrayLike) -> FloatArray:
        """Fraction of accepted requests with at most each response time, same shape."""
        times = np.asarray(response_time_ms, dtype=float)
        return self._distribution.cdf(times.ravel()).reshape(times.shape)

    def service_level(self, response_time_ms: float) -> float:
        """Fraction of accepted requests that are answered in time."""
        return float(self.cdf(response_time_ms))

    def response_percentile_ms(self, percentile: float) -> float:
        """Least time within which `percentile` percent of accepted requests are answered.

        Raises
        ------
        InvalidInputError
            `percentile` is not between 0 and 100.
        """
        if not 0 < percentile < 100:
            raise InvalidInputError(f"percentile: must be between 0 and 100, not {percentile:g}")
        return self._distribution.quantile(percentile / 100)


class ResponseTimes:
    """The distribution of the response time under a control limit."""

    def __init__(self, chain: StartChain) -> None:
        self._chain = chain
        self._measures: list[AgeMeasure] = []
        # (time, count): requests of exactly that response time.
        self._atoms: list[tuple[float, float]] = []
        # (start, width, count): requests uniform on an interval.
        self._uniforms: list[tuple[float, float, float]] = []
        oldest_waiting = self._started_at_once()
        self._started_after_a_wait(*oldest_waiting)
        atoms = np.array(self._atoms).reshape(-1, 2)
        self._atom_times_ms, self._atom_counts = atoms.T
        uniforms = np.array(self._uniforms).reshape(-1, 3)
        self._uniform_starts_ms, self._uniform_widths_ms, self._uniform_counts = uniforms.T
        self.count = (
            sum(measure.count for measure in self._measures)
            + float(self._atom_counts.sum())
            + float(self._uniform_counts.sum())
        )
        self.mean_ms = (
            sum(measure.total_response_ms for measure in self._measures)
            + float(self._atom_times_ms @ self._atom_counts)
            + float((self._uniform_starts_ms + self._uniform_widths_ms / 2) @ self._uniform_counts)
        ) / self.count

    def cdf(self, times_ms: FloatArray) -> FloatArray:
        """Evaluate at times of shape (times,)."""
        count = np.zeros(times_ms.shape)
        for measure in self._measures:
            count += measure.count_within(times_ms)
        # An atom at 1.357 is met by a target of 1.357, whatever the rounding of sums.
        count += (self._atom_times_ms <= times_ms[:, None] * (1 + 1e-12)) @ self._atom_counts
        since = times_ms[:, None] - self._uniform_starts_ms
        count += np.clip(since / self._uniform_widths_ms, 0.0, 1.0) @ self._uniform_counts
        return np.clip(count / self.count, 0.0, 1.0)

    def quantile(self, probability: float) -> float:
        """Least time whose cdf reaches `probability`."""
        low, high = 0.0, float(self._chain.system.batch_times_ms[-1])
        while self.cdf(np.array([high]))[0] < probability and high < 1e12:
            low, high = high, 2 * high
        while high - low > 1e-9 * high:
            grid = np.linspace(low, high, 65)
            above = int(np.argmax(self.cdf(grid) >= probability))
            if above == 0:
                return float(grid[0])
            low, high = float(grid[above - 1]), float(grid[above])
        return high

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
        residual = panels.nodes_ms.ravel()
        blocks, room = arriving.shape[0], system.waiting_room
        offsets = float(system.batch_times_ms[-1]) * np.arange(blocks)
        age = offsets[:, None] + residual
        top = size if room is None else min(size, max(room, 1))
        oldest = np.zeros((top, *age.shape))
        younger = np.zeros_like(oldest)
        running = np.zeros(age.shape)
        # Behind a request wait those that came since, but for the last block of a waiting room.
        whole = blocks if not room or room >= blocks * size else blocks - 1
        parts = [
            (
                slice(0, whole),
                poisson_pmf(np.arange(size), system.arrival_rate * age[:whole, :, None]),
            )
        ]
        if room and whole < blocks:
            last = [
                system.followers(size, residual, whole, position)
                for position in range(1, room - whole * size + 1)
            ]
            parts.append((slice(whole, blocks), np.stack(last, axis=1)[None]))
        for part, behind in parts:
            fewer = np.cumsum(behind, axis=-1)
            if behind.ndim == 3:  # the same law at every position
                shape = (*behind.shape[:2], top, size)
                behind = np.broadcast_to(behind[:, :, None], shape)
                fewer = np.broadcast_to(fewer[:, :, None], shape)
            here = arriving[part, :, : min(top, behind.shape[2])]
            positions = np.arange(here.shape[2])
            for n in range(limit, top):
                k = positions[:n]
                oldest[n - 1, part] = np.sum(here[..., :n] * behind[:, :, k, n - 1 - k], axis=-1)
            k = positions[: top - 1]
            oldest[top - 1, part] = np.sum(here, axis=-1) - np.sum(
                here[..., : top - 1] * fewer[:, :, k, top - 2 - k], axis=-1
            )
            if limit == 1:
                continue
            first, short = here[..., 0], behind[:, :, 0, : limit - 1]
            expired = np.where(age[part] >= d, first, 0.0)
            if np.any(expired):
                for n in range(1, limit):
                    oldest[n - 1, part] += expired * short[..., n - 1]
                    younger[n - 1, part] += (n - 1) * expired * short[..., n - 1]
            fresh = poisson_pmf(np.arange(limit - 1), system.arrival_rate * age[part, :, None])
            share = short.sum(axis=-1) / fresh.sum(axis=-1)
            running[part] = np.where(age[part] < d, first * share, 0.0)
        starts = (offsets[:, None] + panels.edges_ms[:-1]).ravel()
        axis = Panels(np.append(starts, offsets[-1] + panels.edges_ms[-1]))
        shape = (top, *axis.nodes_ms.shape)
        timed = np.isfinite(d) and limit > 1
        self._measures.append(
            AgeMeasure(
                axis,
                system.batch_times_ms[:top],
                oldest.reshape(shape),
                younger.reshape(shape) if timed else None,
            )
        )
        return axis, running.reshape(shape[1:])

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
        jumps = times[likely[probabilities[likely] > _NEGLIGIBLE]]
        if np.isfinite(d):
            jumps = np.append(jumps, d % float(system.batch_times_ms[-1]))
        panels = Panels.cut(end, jumps, (1 + np.sqrt(rate * end)) / rate)
        left = panels.nodes_ms.ravel()
        positions = chain.longest if system.waiting_room is None else system.waiting_room
        most = int(rate * end + 10 * np.sqrt(rate * end) + 30)
        before = np.arange(min(positions, most))
        arriving = np.zeros((left.size, positions))
        sizes = np.flatnonzero(probabilities > _NEGLIGIBLE * 1e-2)
        elapsed = times[sizes] - left[:, None]
        node, which = np.nonzero(elapsed > 0)
        counts = poisson_pmf(before, rate * elapsed[node, which, None])
        counts *= probabilities[sizes[which], None]
        first = np.flatnonzero(np.diff(node, prepend=-1))
        arriving[node[first], : before.size] = np.add.reduceat(counts, first, axis=0)
        if chain.longest > size:
            left_over = np.concatenate(([0.0], chain.probabilities[size:]))
            from_full = fftconvolve(
                left_over[None, :], poisson_pmf(before, rate * (end - left)[:, None]), axes=1
            )
            arriving += np.maximum(from_full[:, :positions], 0.0)
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
            self._atoms.append((float(system.batch_times_ms[0]), empty))
            return
        younger_than = panels.cumulative(oldest_waiting)
        longest = min(d, float(gammainccinv(limit - 1, 1e-16)) / rate)
        time = float(system.batch_times_ms[limit - 1])
        if longest > 0:
            waits = Panels.cut(longest, panels.edges_ms, 0.7 * np.sqrt(limit) / rate)
            h = waits.nodes_ms
            ended = rate * poisson_pmf(limit - 2, rate * h) * (empty + younger_than.at(h))
            measure = AgeMeasure(waits, np.array([time]), ended[None], (limit - 2) * ended[None])
            self._measures.append(measure)
            self._atoms.append((time, float(waits.integral(ended))))
        if np.isfinite(d):
            running = empty + float(younger_than.at(np.array(d)))
            for younger in range(limit - 1):
                count = running * float(poisson_pmf(younger, rate * d))
                time = float(system.batch_times_ms[younger])
                self._atoms.append((d + time, count))
                if younger and d > 0:
                    self._uniforms.append((time, d, younger * count))


def evaluate(
    profile: Profile,
    batching_policy: BatchingPolicy,
    arrival_rate_per_s: float,
    *,
    waiting_room: int | None = None,
) -> Evaluation:
    """Evaluate a batching policy under Poisson arrivals.

    Parameters
    ----------
    profile : Profile
        Batch times, and energies if known.
    batching_policy : BatchingPolicy
        What a free device does.
    arrival_rate_per_s : float
        Requests per second.
    waiting_room : int, optional
        Requests that may wait besides those in service; those beyond are refused. A request that
        starts a batch by its arrival needs no room. None: all are accepted.

    Raises
    ------
    InvalidInputError
        An argument is wrong.
    InfeasibleError
        Without a waiting room: the policy cannot keep up with the arrival rate.
    """
    if not (arrival_rate_per_s > 0 and np.isfinite(arrival_rate_per_s)):
        raise InvalidInputError(
            f"arrival_rate_per_s: must be above 0 and finite, not {arrival_rate_per_s:g}"
        )
    size = batching_policy.max_batch_size
    if size > profile.max_batch_size:
        raise InvalidInputError(
            f"policy: starts batches of {size}, the profile ends at {profile.max_batch_size}"
        )
    limit = batching_policy.control_limit
    if any(batching_policy.batch_size(n) != n for n in range(limit, size + 1)):
        raise InvalidInputError("policy: only control limits can be evaluated")
    if waiting_room is not None and (
        waiting_room < 0 or 0 < waiting_room < limit or (waiting_room == 0 and limit > 1)
    ):
        raise InvalidInputError(
            f"waiting_room: must hold the control limit, {limit}, not {waiting_room}"
        )
    times = profile.latency_ms[:size]
    capacity = 1e3 * size / times[-1]
    if waiting_room is None and arrival_rate_per_s >= capacity:
        raise InfeasibleError(
            f"arrival rate {arrival_rate_per_s:g}/s: the policy serves at most {capacity:.6g}/s"
        )
    wait = batching_policy.max_wait_ms
    system = ControlLimitSystem(
        1e-3 * arrival_rate_per_s, times, limit, np.inf if wait is None else wait, waiting_room
    )
    chain = StartChain(system)
    sizes = np.zeros(size + 1)
    np.add.at(sizes, chain.batch_sizes, chain.probabilities)
    power = None
    if profile.energy_mj is not None:
        power = float(sizes[1:] @ profile.energy_mj[:size]) / chain.ms_per_start
    return Evaluation(
        arrival_rate_per_s=arrival_rate_per_s,
        mean_power_w=power,
        batch_size_probabilities=sizes,
        full_probability=chain.refused_per_start
        / (chain.refused_per_start + chain.served_per_start),
        device_busy_fraction=float(sizes[1:] @ times) / chain.ms_per_start,
        _chain=chain,
    )
