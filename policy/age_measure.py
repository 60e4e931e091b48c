"""Distributions of response times that are mixtures over the age of a request at a batch start."""

from dataclasses import dataclass

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
        Increasing, from 0.
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

    @property
    def widths_ms(self) -> FloatArray:
        """Width of each panel."""
        return np.diff(self.edges_ms)

    @property
    def nodes_ms(self) -> FloatArray:
        """Quadrature points, shape (panels, order)."""
        return self.edges_ms[:-1, None] + self.widths_ms[:, None] * NODES

    def integral(self, values: FloatArray) -> FloatArray:
        """Integrate `values` at the nodes, shape (..., panels, order), over the whole axis."""
        return np.asarray((values @ QUADRATURE) @ self.widths_ms)

    def cumulative(self, values: FloatArray) -> "Cumulative":
        """Integrate `values` at the nodes, shape (..., panels, order), from 0 on."""
        return Cumulative(self, values)


class Cumulative:
    """The integral of a density from 0 to any time."""

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
        inside = np.clip(time_ms, 0.0, edges[-1])
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
        self.longest_ms = float(panels.edges_ms[-1] + batch_times_ms[-1])

    def count_within(self, response_time_ms: FloatArray) -> FloatArray:
        """Count requests by response time, shape (times,)."""
        age = np.maximum(response_time_ms[:, None] - self._batch_times_ms, 0.0)
        count = self._both.at_rows(age)
        if self._spread is not None:
            # Of requests uniform below s > age, the fraction age / s is young enough.
            count = count + age * (self._spread.total - self._spread.at_rows(age))
        return np.asarray(count.sum(axis=1))
