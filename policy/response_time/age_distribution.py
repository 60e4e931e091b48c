"""Distributions of response times that are mixtures over the age of a request at a batch start."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.polynomial import polynomial
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_ORDER = 5
_points, _quadrature = np.polynomial.legendre.leggauss(_ORDER)
NODES: FloatArray = (_points + 1) / 2
"""Gauss-Legendre points of a panel, as fractions of its width."""
QUADRATURE: FloatArray = _quadrature / 2
"""Their weights, which sum to 1."""
# Row g holds the coefficients of the integral from 0 to u of the polynomial that is 1 at point g.
_INTEGRALS: FloatArray = np.array(
    [
        polynomial.polyint(polynomial.polyfit(NODES, np.eye(_ORDER)[g], _ORDER - 1))
        for g in range(_ORDER)
    ]
)


@dataclass(frozen=True)
class Panels:
    """A time axis, cut where a density on it may jump.

    Attributes
    ----------
    edges_ms : ndarray of float, shape (panels + 1,)
        Increasing.
    """

    edges_ms: FloatArray

    @classmethod
    def cut(cls, end_ms: float, jumps_ms: FloatArray, widest_ms: float) -> "Panels":
        """Cut the time from 0 to `end_ms` at `jumps_ms`, and into panels up to `widest_ms`."""
        inside = jumps_ms[(jumps_ms > 0) & (jumps_ms < end_ms)]
        cuts = np.unique(np.concatenate(([0.0, end_ms], inside)))
        # Two cuts within rounding of each other would make a panel of no width.
        cuts = cuts[np.concatenate(([True], np.diff(cuts) > 1e-9 * end_ms))]
        cuts[-1] = end_ms
        parts = np.maximum(1, np.ceil(np.diff(cuts) / widest_ms)).astype(int)
        # Panel number p of its stretch starts p / parts of the way.
        number = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        starts = np.repeat(cuts[:-1], parts) + number * np.repeat(np.diff(cuts) / parts, parts)
        return cls(np.append(starts, end_ms))

    @cached_property
    def widths_ms(self) -> FloatArray:
        """Width of each panel."""
        return np.diff(self.edges_ms)

    @cached_property
    def nodes_ms(self) -> FloatArray:
        """Quadrature points, shape (panels, order)."""
        return self.edges_ms[:-1, None] + self.widths_ms[:, None] * NODES

    def integral(self, values: FloatArray) -> FloatArray:
        """Integrate `values` at the nodes, shape (..., panels, order), over the whole axis."""
        return np.asarray((values @ QUADRATURE) @ self.widths_ms)

    def cumulative(self, values: FloatArray) -> "Cumulative":
        """Integrate `values` at the nodes, shape (..., panels, order), up to any time."""
        return Cumulative(self, values)


class Cumulative:
    """The integral of a density up to any time."""

    def __init__(self, panels: Panels, values: FloatArray) -> None:
        self._panels = panels
        masses = (values @ QUADRATURE) * panels.widths_ms
        before = np.cumsum(masses, axis=-1)
        self.total: FloatArray = before[..., -1]
        # Coefficients over the fraction of the panel, the constant first.
        self._coefficients = (values * panels.widths_ms[:, None]) @ _INTEGRALS
        self._coefficients[..., 1:, 0] = before[..., :-1]

    def locate(self, time_ms: FloatArray) -> tuple[NDArray[np.intp], FloatArray]:
        """Find the panel of each time, and the fraction of it that lies before."""
        edges = self._panels.edges_ms
        inside = np.clip(time_ms, edges[0], edges[-1])
        panel = np.clip(np.searchsorted(edges, inside, side="right") - 1, 0, edges.size - 2)
        return panel, (inside - edges[panel]) / self._panels.widths_ms[panel]

    def at(self, time_ms: FloatArray) -> FloatArray:
        """Evaluate a single density's integral at times of any shape."""
        panel, fraction = self.locate(time_ms)
        return _horner(self._coefficients[panel], fraction)

    def at_rows(self, time_ms: FloatArray) -> FloatArray:
        """Evaluate at times of shape (times, rows), each row with its own density."""
        panel, fraction = self.locate(time_ms)
        rows = np.arange(time_ms.shape[1])
        return _horner(self._coefficients[rows, panel], fraction)


def _horner(coefficients: FloatArray, fraction: FloatArray) -> FloatArray:
    value = coefficients[..., -1]
    for power in range(coefficients.shape[-1] - 2, -1, -1):
        value = value * fraction + coefficients[..., power]
    return value


class AgeMeasure:
    """Requests by their age when their batch starts.

    A row is a batch time. In row ``b``, at age ``s``, `oldest` counts requests of exactly that
    age, `younger` requests whose age is uniform between 0 and ``s``; both are densities over ``s``
    at the nodes, shape (rows, panels, order).
    """

    def __init__(
        self,
        panels: Panels,
        batch_times_ms: FloatArray,
        oldest: FloatArray,
        younger: FloatArray | None = None,
    ) -> None:
        self._batch_times_ms = batch_times_ms
        nodes = panels.nodes_ms
        both = oldest if younger is None else oldest + younger
        self._both = panels.cumulative(both)
        self._spread = None if younger is None else panels.cumulative(younger / nodes)
        half = oldest if younger is None else oldest + younger / 2
        self.count = float(np.sum(self._both.total))
        self.total_response_ms = float(
            np.sum(panels.integral(half * nodes)) + self._both.total @ batch_times_ms
        )

    def count_within(self, response_time_ms: FloatArray) -> FloatArray:
        """Count requests by response time, shape (times,)."""
        age = np.maximum(response_time_ms[:, None] - self._batch_times_ms, 0.0)
        count = self._both.at_rows(age)
        if self._spread is not None:
            # Of requests uniform below s > age, the fraction age / s is young enough.
            count = count + age * (self._spread.total - self._spread.at_rows(age))
        return np.asarray(count.sum(axis=1))


class Measure(Protocol):
    """Counts of requests by response time."""

    count: float
    total_response_ms: float

    def count_within(self, response_time_ms: FloatArray) -> FloatArray:
        """Count requests by response time, shape (times,)."""


class Mixture:
    """A distribution of response times, put together from counts of requests.

    Attributes
    ----------
    measures : list of Measure
    atoms : list of (time, count)
        Requests of exactly that response time.
    uniforms : list of (start, width, count)
        Requests uniform on an interval.
    """

    def __init__(self) -> None:
        self.measures: list[Measure] = []
        self.atoms: list[tuple[float, float]] = []
        self.uniforms: list[tuple[float, float, float]] = []

    def close(self) -> None:
        """Take the counts as complete."""
        atoms = np.array(self.atoms).reshape(-1, 2)
        self._atom_times_ms, self._atom_counts = atoms.T
        uniforms = np.array(self.uniforms).reshape(-1, 3)
        self._uniform_starts_ms, self._uniform_widths_ms, self._uniform_counts = uniforms.T
        self.count = (
            sum(measure.count for measure in self.measures)
            + float(self._atom_counts.sum())
            + float(self._uniform_counts.sum())
        )
        self.mean_ms = (
            sum(measure.total_response_ms for measure in self.measures)
            + float(self._atom_times_ms @ self._atom_counts)
            + float((self._uniform_starts_ms + self._uniform_widths_ms / 2) @ self._uniform_counts)
        ) / self.count

    def cdf(self, times_ms: FloatArray) -> FloatArray:
        """Evaluate at times of shape (times,)."""
        count = np.zeros(times_ms.shape)
        for measure in self.measures:
            count += measure.count_within(times_ms)
        # An atom at 1.357 is met by a target of 1.357, whatever the rounding of sums.
        count += (self._atom_times_ms <= times_ms[:, None] * (1 + 1e-12)) @ self._atom_counts
        since = times_ms[:, None] - self._uniform_starts_ms
        count += np.clip(since / self._uniform_widths_ms, 0.0, 1.0) @ self._uniform_counts
        return np.clip(count / self.count, 0.0, 1.0)

    def quantile(self, probability: float) -> float:
        """Least time whose cdf reaches `probability`."""
        low, high = 0.0, 1.0
        while self.cdf(np.array([high]))[0] < probability and high < 1e12:
            low, high = high, 2 * high
        while high - low > 1e-9 * high:
            grid = np.linspace(low, high, 65)
            above = int(np.argmax(self.cdf(grid) >= probability))
            if above == 0:
                return float(grid[0])
            low, high = float(grid[above - 1]), float(grid[above])
        return high
