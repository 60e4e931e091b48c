"""Gauss-Legendre quadrature of densities that jump at known times."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.polynomial import polynomial
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def gauss_legendre(order: int) -> tuple[FloatArray, FloatArray]:
    """Return the points and weights of Gauss-Legendre quadrature on the interval from 0 to 1."""
    points, weights = np.polynomial.legendre.leggauss(order)
    return (points + 1) / 2, weights / 2


_ORDER = 5
_POINTS, _WEIGHTS = gauss_legendre(_ORDER)
# Row g holds the coefficients of the integral from 0 to u of the polynomial that is 1 at point g
# and 0 at the others.
_INTEGRALS: FloatArray = np.array(
    [
        polynomial.polyint(polynomial.polyfit(_POINTS, np.eye(_ORDER)[g], _ORDER - 1))
        for g in range(_ORDER)
    ]
)


@dataclass(frozen=True)
class Panels:
    """A stretch of time, cut into panels on which a density is smooth."""

    edges_ms: FloatArray

    @classmethod
    def cut(cls, end_ms: float, jumps_ms: FloatArray, max_width_ms: float) -> "Panels":
        """Cut the time from 0 to `end_ms` at `jumps_ms`, into panels of at most `max_width_ms`."""
        inside = jumps_ms[(jumps_ms > 0) & (jumps_ms < end_ms)]
        cuts = np.unique(np.concatenate(([0.0, end_ms], inside)))
        # Two cuts within rounding of each other would make a panel of no width.
        cuts = cuts[np.concatenate(([True], np.diff(cuts) > 1e-9 * end_ms))]
        cuts[-1] = end_ms
        parts = np.maximum(1, np.ceil(np.diff(cuts) / max_width_ms)).astype(int)
        # Panel number p of an interval between two cuts starts p / parts of the way.
        number = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        starts = np.repeat(cuts[:-1], parts) + number * np.repeat(np.diff(cuts) / parts, parts)
        return cls(np.append(starts, end_ms))

    def repeated(self, offsets_ms: NDArray[np.floating]) -> "Panels":
        """Lay copies of the panels end to end, one from each of `offsets_ms` on.

        The offsets must be as far apart as the panels are long.
        """
        starts = (offsets_ms[:, None] + self.edges_ms[:-1]).ravel()
        return Panels(np.append(starts, offsets_ms[-1] + self.edges_ms[-1]))

    @cached_property
    def widths_ms(self) -> FloatArray:
        return np.diff(self.edges_ms)

    @cached_property
    def nodes_ms(self) -> FloatArray:
        """Quadrature points, shape (panels, order)."""
        return self.edges_ms[:-1, None] + self.widths_ms[:, None] * _POINTS

    def integral(self, values: FloatArray) -> FloatArray:
        """Integrate over all panels."""
        return np.asarray((values @ _WEIGHTS) @ self.widths_ms)


class CumulativeIntegral:
    """The integral of one or more densities from the first edge up to any time."""

    def __init__(self, panels: Panels, values: FloatArray) -> None:
        self._panels = panels
        masses = (values @ _WEIGHTS) * panels.widths_ms
        before = np.cumsum(masses, axis=-1)
        self.total: FloatArray = before[..., -1]
        # Per panel, a polynomial in the fraction of it that lies before; the constant first.
        self._coefficients = (values * panels.widths_ms[:, None]) @ _INTEGRALS
        self._coefficients[..., 1:, 0] = before[..., :-1]

    def at(self, time_ms: FloatArray) -> FloatArray:
        """Evaluate the integral at times of any shape; of several, shape (times, densities)."""
        edges = self._panels.edges_ms
        inside = np.clip(time_ms, edges[0], edges[-1])
        panel = np.clip(np.searchsorted(edges, inside, side="right") - 1, 0, edges.size - 2)
        fraction = (inside - edges[panel]) / self._panels.widths_ms[panel]
        place = panel if self.total.ndim == 0 else (np.arange(self.total.size), panel)
        coefficients = np.moveaxis(self._coefficients[place], -1, 0)
        return np.asarray(polynomial.polyval(fraction, coefficients, tensor=False))
