"""Requests by age on an even grid: for tables that split batches in many ways.

A table may serve a request after any of a great many sums of batch times. Beyond a few of them,
following each sum on its own costs too much time and memory; on a grid, all sums are followed
together. A request whose age lies between two points of the grid is divided between them such that
its mean age is right: counts and means are exact, and the cdf is that of ages shifted by less than
a step either way.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from policy.response_time.quadrature import Panels

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class AgeGrid:
    """Ages 0, `step_ms`, 2 `step_ms`, and so on.

    Attributes
    ----------
    step_ms : float
    points : int
    """

    step_ms: float
    points: int

    @cached_property
    def nodes_ms(self) -> FloatArray:
        """The ages, shape (points,)."""
        return np.asarray(self.step_ms * np.arange(self.points), dtype=float)

    @cached_property
    def weights_ms(self) -> FloatArray:
        """Ones, shape (points,): what is on a grid is counts, not a density."""
        return np.ones(self.points)

    def deposit(self, ages_ms: FloatArray, counts: FloatArray) -> FloatArray:
        """Put counts of given ages, shape (..., ages), on the grid, shape (..., points)."""
        below, share = self._divide(ages_ms)
        node = np.arange(ages_ms.size)
        matrix = csr_array(
            (
                np.concatenate([1 - share, share]),
                (np.concatenate([below, below + 1]), np.concatenate([node, node])),
            ),
            shape=(self.points, ages_ms.size),
        )
        flat = counts.reshape(-1, ages_ms.size)
        return np.asarray(matrix @ flat.T).T.reshape(*counts.shape[:-1], self.points)

    def from_panels(self, panels: Panels) -> FloatArray:
        """Return the matrix that turns a density at the nodes into counts on the grid.

        The quadrature points may be further apart than those of the grid: the polynomials through
        them are integrated in parts that are not.

        Returns
        -------
        ndarray of float, shape (nodes, points)
        """
        matrix = []
        for edges in np.lib.stride_tricks.sliding_window_view(panels.edges_ms, 2):
            panel = Panels(edges)
            parts = int(np.ceil(panel.widths_ms[0] / self.step_ms))
            ages, weights = panel.resampled(parts)
            matrix.append(self.deposit(ages[0], weights[0].T))
        return np.concatenate(matrix)

    def shift(self, counts: FloatArray, time_ms: float) -> FloatArray:
        """Return counts, shape (n, points), of requests that have grown older by `time_ms`."""
        below, share = self._divide(np.array(time_ms))
        first, part = int(below), float(share)
        older = np.zeros_like(counts)
        older[:, first:] = (1 - part) * counts[:, : self.points - first]
        older[:, first + 1 :] += part * counts[:, : self.points - first - 1]
        return older

    def _divide(self, ages_ms: FloatArray) -> tuple[NDArray[np.intp], FloatArray]:
        """Return the point below each age, and the share that goes to the one above."""
        place = np.minimum(ages_ms / self.step_ms, self.points - 1.001)
        below = np.floor(place).astype(np.intp)
        return below, place - below


class AgesOnGrid:
    """Requests by their age on a grid when their own batch starts.

    Parameters
    ----------
    grid : AgeGrid
    batch_times_ms : ndarray of float, shape (rows,)
        Row ``b`` holds the requests of batches that take this long.
    counts : ndarray of float, shape (rows, points)
    """

    def __init__(self, grid: AgeGrid, batch_times_ms: FloatArray, counts: FloatArray) -> None:
        self._batch_times_ms = batch_times_ms
        # The count at a point lies on both sides of it.
        self._edges_ms = np.concatenate(([-grid.step_ms], grid.nodes_ms)) + grid.step_ms / 2
        self._below = np.concatenate(
            [np.zeros((counts.shape[0], 1)), counts.cumsum(axis=1)], axis=1
        )
        totals = counts.sum(axis=1)
        self.count = float(totals.sum())
        self.total_response_ms = float(np.sum(counts @ grid.nodes_ms) + totals @ batch_times_ms)

    def count_within(self, response_time_ms: FloatArray) -> FloatArray:
        """Count the requests with at most each response time, shapes (times,)."""
        count = np.zeros(response_time_ms.shape)
        for time_ms, below in zip(self._batch_times_ms, self._below, strict=True):
            count += np.interp(response_time_ms - time_ms, self._edges_ms, below)
        return count
