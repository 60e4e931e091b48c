"""Distributions of response times, put together from requests counted by response time.

Requests are counted per batch start. A distribution collects *components*: requests whose response
times have a density, with their count and the sum of their times; atoms (requests of exactly one
response time); and uniforms. Its cdf is the count up to a time over the count of all
(docs/policy.md).
"""

import numpy as np
from numpy.typing import NDArray

from policy.numerics.quadrature import CumulativeIntegral, Panels

FloatArray = NDArray[np.float64]

# A response time that equals a target but for the rounding of sums meets it.
_ROUNDING = 1e-12


class AgesAtStart:
    r"""Requests by their age when their own batch starts.

    Row ``b`` holds the requests of batches that take :math:`\tau_b`. At age :math:`s`, the density
    :math:`o_b(s)` counts requests of exactly that age, and :math:`y_b(s)` counts requests whose
    age is uniform between 0 and :math:`s`. The requests with a response time of at most :math:`t`
    are, with :math:`u_b = t - \tau_b` (equation 13 of docs/policy.md),

    .. math:: \sum_b \int_0^{u_b} (o_b(s) + y_b(s))\,ds + u_b \int_{u_b}^\infty y_b(s) / s\,ds .

    Parameters
    ----------
    panels : Panels
        Of the age s.
    exact : ndarray of float, shape (rows, panels, order)
        o at the nodes.
    uniform : ndarray of float, shape (rows, panels, order), optional
        y at the nodes.
    """

    def __init__(
        self,
        panels: Panels,
        batch_times_ms: FloatArray,
        exact: FloatArray,
        uniform: FloatArray | None = None,
    ) -> None:
        self._batch_times_ms = batch_times_ms
        nodes = panels.nodes_ms
        both = exact if uniform is None else exact + uniform
        self._both, self._uniform_over_age = CumulativeIntegral(panels, both), None
        if uniform is not None:
            self._uniform_over_age = CumulativeIntegral(panels, uniform / nodes)
        mean_part = exact if uniform is None else exact + uniform / 2
        self.count = float(np.sum(self._both.total))
        self.total_response_ms = float(
            np.sum(panels.integral(mean_part * nodes)) + self._both.total @ batch_times_ms
        )

    def count_within(self, response_time_ms: FloatArray) -> FloatArray:
        age = np.maximum(response_time_ms[:, None] - self._batch_times_ms, 0.0)
        count = self._both.at(age)
        if self._uniform_over_age is not None:
            older = self._uniform_over_age.total - self._uniform_over_age.at(age)
            count = count + age * older
        return np.asarray(count.sum(axis=1))


class AgesInFullBatches:
    r"""Requests so far back in the queue that they wait for batches of one size only.

    Row :math:`i` of the density holds the requests that wait for the rest of the batch in which
    they arrived, a time :math:`r`, and for :math:`f + i` batches of :math:`\tau`. After the last
    row the density goes on forever, each row :math:`w` times the one before. Of the rows after the
    last, :math:`n` with the integral :math:`A(r)`, those within an age :math:`u` are

    .. math:: \sum_{i \ge 1} w^i A(u - (f + n + i)\,\tau) ,

    where all but a few terms are complete and sum to a geometric series (equation 9a of
    docs/policy.md).

    Parameters
    ----------
    panels : Panels
        Of r, from 0.
    batch_time_ms : float
        τ.
    batches_before : int
        f.
    log_ratio : float
        The logarithm of w; minus infinity if nothing follows the last row.
    """

    def __init__(
        self,
        panels: Panels,
        density: FloatArray,
        batch_time_ms: float,
        batches_before: int,
        log_ratio: float = -np.inf,
    ) -> None:
        self._end_ms, self._batch_time_ms = float(panels.edges_ms[-1]), batch_time_ms
        self._rows, self._last_row = (
            CumulativeIntegral(panels, density),
            CumulativeIntegral(panels, density[-1]),
        )
        self._waits_ms = batch_time_ms * (batches_before + np.arange(density.shape[0]))
        self._log_ratio = log_ratio
        counts = self._rows.total
        totals = panels.integral(density * panels.nodes_ms)
        totals = totals + counts * (self._waits_ms + batch_time_ms)
        # Σ w^i and Σ i w^i over i ≥ 1.
        ratio, rest = float(np.exp(log_ratio)), float(-np.expm1(log_ratio))
        self.count = float(counts.sum() + counts[-1] * ratio / rest)
        self.total_response_ms = float(
            totals.sum() + totals[-1] * ratio / rest + counts[-1] * batch_time_ms * ratio / rest**2
        )

    def count_within(self, response_time_ms: FloatArray) -> FloatArray:
        left = response_time_ms[:, None] - self._batch_time_ms - self._waits_ms
        count = self._rows.at(np.maximum(left, 0.0)).sum(axis=1)
        if np.isinf(self._log_ratio):
            return np.asarray(count)
        beyond = left[:, -1]
        complete = np.maximum(np.floor((beyond - self._end_ms) / self._batch_time_ms), 0.0)
        series = np.expm1(complete * self._log_ratio) / np.expm1(self._log_ratio)
        count = count + self._last_row.total * np.exp(self._log_ratio) * series
        for further in range(1, int(np.ceil(self._end_ms / self._batch_time_ms)) + 2):
            row = complete + further
            part = self._last_row.at(np.maximum(beyond - row * self._batch_time_ms, 0.0))
            count = count + np.exp(row * self._log_ratio) * part
        return np.asarray(count)


class ResponseTimeDistribution:
    """A distribution of response times.

    Fill `components`, `atoms` and `uniforms`, then call `close` once.

    Attributes
    ----------
    atoms : list of (time_ms, count)
        Requests of exactly that response time.
    uniforms : list of (start_ms, width_ms, count)
        Requests whose response times are uniform on an interval.
    count : float
        All requests per batch start; set by `close`.
    mean_ms : float
        Mean response time; set by `close`.
    """

    def __init__(self) -> None:
        self.components: list[AgesAtStart | AgesInFullBatches] = []
        self.atoms: list[tuple[float, float]] = []
        self.uniforms: list[tuple[float, float, float]] = []

    def close(self) -> None:
        """Compute the total count and the mean; nothing may be added afterwards."""
        atoms = np.array(self.atoms).reshape(-1, 2)
        self._atom_times_ms, self._atom_counts = atoms.T
        uniforms = np.array(self.uniforms).reshape(-1, 3)
        self._uniform_starts_ms, self._uniform_widths_ms, self._uniform_counts = uniforms.T
        self.count = (
            sum(component.count for component in self.components)
            + float(self._atom_counts.sum())
            + float(self._uniform_counts.sum())
        )
        self.mean_ms = (
            sum(component.total_response_ms for component in self.components)
            + float(self._atom_times_ms @ self._atom_counts)
            + float((self._uniform_starts_ms + self._uniform_widths_ms / 2) @ self._uniform_counts)
        ) / self.count

    def cdf(self, times_ms: FloatArray) -> FloatArray:
        """Return the fraction of requests with at most each response time, shapes (times,)."""
        count = np.zeros(times_ms.shape)
        for component in self.components:
            count += component.count_within(times_ms)
        count += (self._atom_times_ms <= times_ms[:, None] * (1 + _ROUNDING)) @ self._atom_counts
        since = times_ms[:, None] - self._uniform_starts_ms
        count += np.clip(since / self._uniform_widths_ms, 0.0, 1.0) @ self._uniform_counts
        return np.clip(count / self.count, 0.0, 1.0)

    def quantile(self, probability: float) -> float:
        """Return the least time in ms whose cdf reaches `probability`, to a relative 1e-9."""
        low, high = 0.0, 1.0
        while self.cdf(np.array([high]))[0] < probability and high < 1e12:
            low, high = high, 2 * high
        while high - low > 1e-9 * high:
            grid = np.linspace(low, high, 17)
            above = int(np.argmax(self.cdf(grid) >= probability))
            if above == 0:
                return float(grid[0])
            low, high = float(grid[above - 1]), float(grid[above])
        return high
