"""Split a batch of rows of different sizes into groups, so that computing it takes the least time.

Some models' time depends on the size of the rows, for instance the length of a text. Such a model
pads all rows of a batch to its longest one. Splitting the batch into groups of similar size needs
less padding, but each group costs the device's fixed time again. `Bucketing.split` finds the best
split for the device's own times, which `measure_batch_time` fits while the model loads::

    def load(self, device):
        ...
        time = measure_batch_time(run, counts=(1, 4, 16), sizes=(8, 16, 32, 64), budget_s=1.0)
        self.bucketing = Bucketing(time)

    def forward(self, batch):
        rows = tokenize(batch["text"])
        return self.bucketing.run([len(row) for row in rows], lambda group: ...)

This module does not depend on what the rows are.
"""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from deployments.errors import ModelError
from policy.errors import InvalidInputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
GroupTime = Callable[[IntArray, IntArray], FloatArray]
"""Function from counts of rows and padded sizes, which broadcast, to milliseconds."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a batch that are computed together.

    Attributes
    ----------
    rows : tuple of int
        Indices of the rows in the batch, increasing.
    padded_size : int
        The size that each row is padded to.
    """

    rows: tuple[int, ...]
    padded_size: int


@dataclass(frozen=True)
class BatchTime:
    """Time of a group as a function of its number of rows `n` and padded size `s`.

    The time in ms is ``a + b·n + c·s + d·n·s + e·n·s²``, with no negative coefficient, so it never
    decreases in `n` or `s`. The form is that of sequence networks: ``d`` is the cost of layers that
    treat each position separately, ``e`` that of attention, and ``c`` that of sequential steps.

    Attributes
    ----------
    coefficients_ms : tuple of float
        ``(a, b, c, d, e)``.
    max_relative_error : float
        Largest relative error at the times that the coefficients were fitted to.
    """

    coefficients_ms: tuple[float, float, float, float, float]
    max_relative_error: float = 0.0

    def __call__(self, counts: ArrayLike, sizes: ArrayLike) -> FloatArray:
        """Return times in ms, for counts and sizes whose shapes broadcast."""
        count, size = np.asarray(counts, np.float64), np.asarray(sizes, np.float64)
        a, b, c, d, e = self.coefficients_ms
        return a + c * size + count * (b + size * (d + e * size))

    @classmethod
    def fit(
        cls, counts: Sequence[int], sizes: Sequence[int], times_ms: Sequence[float]
    ) -> "BatchTime":
        """Fit the coefficients to measured times, by least squares of the relative errors.

        Parameters
        ----------
        counts, sizes : sequence of int, shape (k,)
            Number of rows and padded size of each measurement.
        times_ms : sequence of float, shape (k,)
            Measured times, above 0.

        Raises
        ------
        InvalidInputError
            There are no times, or a time is not above 0.
        """
        measured = np.array(times_ms, np.float64)
        if not measured.size or not (measured > 0).all():
            raise InvalidInputError("batch times: must be above 0, and there must be at least one")
        count, size = np.array(counts, np.float64), np.array(sizes, np.float64)
        terms = np.stack([np.ones_like(count), count, size, count * size, count * size**2], axis=1)
        # The terms differ by orders of magnitude; scaling them keeps the solver accurate.
        scale = terms.max(axis=0)
        scaled, _ = nnls(terms / scale / measured[:, None], np.ones_like(measured))
        a, b, c, d, e = (scaled / scale).tolist()
        error = np.abs(terms @ (scaled / scale) / measured - 1).max()
        return cls((a, b, c, d, e), float(error))


class Bucketing:
    """Splits batches of rows of different sizes into the groups that take the least time.

    Parameters
    ----------
    time_ms : BatchTime, or another function of counts and padded sizes
        Time of a group in ms. It must not decrease with the size.
    buckets : sequence of int, optional
        The sizes that a group may be padded to, increasing. Use them for a device that works best
        with few or round shapes. By default, each group is padded to its longest row.

    Raises
    ------
    InvalidInputError
        The buckets are not increasing whole numbers of at least 1.
    """

    def __init__(self, time_ms: GroupTime, buckets: Sequence[int] | None = None) -> None:
        self._time_ms = time_ms
        self._buckets = None if buckets is None else np.array(buckets)
        if self._buckets is not None and not (
            self._buckets.dtype.kind == "i"
            and self._buckets.size
            and self._buckets[0] >= 1
            and (np.diff(self._buckets) > 0).all()
        ):
            raise InvalidInputError(
                f"buckets: must be increasing whole numbers of at least 1, not {buckets!r}"
            )

    def padded_sizes(self, sizes: Sequence[int] | IntArray) -> IntArray:
        """Return the padded size of each row: the smallest bucket that holds it.

        Parameters
        ----------
        sizes : sequence of int, shape (n,)

        Returns
        -------
        ndarray of int, shape (n,)

        Raises
        ------
        InvalidInputError
            A size is below 1 or larger than the largest bucket.
        """
        given = np.asarray(sizes, np.int64)
        if given.size and given.min() < 1:
            raise InvalidInputError(f"row size: must be at least 1, not {given.min()}")
        if self._buckets is None:
            return given
        if given.size and given.max() > self._buckets[-1]:
            raise InvalidInputError(
                f"row size: must be at most the largest bucket, {self._buckets[-1]}, "
                f"not {given.max()}"
            )
        return self._buckets[np.searchsorted(self._buckets, given)]

    def split(self, sizes: Sequence[int]) -> tuple[Group, ...]:
        """Split a batch into the groups of least total time.

        Some optimal split is contiguous in the order of size: if the group with the largest padding
        takes the largest rows, and all groups keep their numbers of rows, no other group's padding
        grows. Dynamic programming over the ends of the groups therefore finds an optimal split, in
        O(n²) steps. With the rows sorted by size, ``T(0) = 0`` and ::

            T(j) = min over i < j of  T(i) + time(j - i rows, padded size of row j)

        Parameters
        ----------
        sizes : sequence of int, shape (n,)
            Size of each row.

        Returns
        -------
        tuple of Group
            Each row is in exactly one group. The groups are sorted by increasing size. An empty
            batch has no groups.

        Raises
        ------
        InvalidInputError
            A size is below 1 or larger than the largest bucket.
        """
        order = np.argsort(sizes, kind="stable")
        padded = self.padded_sizes(np.asarray(sizes, np.int64)[order])
        number = len(padded)
        # time_ms[count - 1, end - 1] is the time of the `count` rows that end before row `end`.
        time_ms = self._time_ms(np.arange(1, number + 1)[:, None], padded[None, :])
        min_total_ms = np.zeros(number + 1)
        start_of_group = np.zeros(number + 1, np.intp)
        for end in range(1, number + 1):
            totals_ms = min_total_ms[:end] + time_ms[end - 1 :: -1, end - 1]
            start_of_group[end] = start = totals_ms.argmin()
            min_total_ms[end] = totals_ms[start]
        groups = []
        end = number
        while end:
            start = start_of_group[end]
            rows = tuple(sorted(order[start:end].tolist()))
            groups.append(Group(rows, int(padded[end - 1])))
            end = start
        return tuple(reversed(groups))

    def run(
        self, sizes: Sequence[int], forward: Callable[[Group], Mapping[str, NDArray[Any]]]
    ) -> dict[str, NDArray[Any]]:
        """Split a batch, compute each group, and reassemble the outputs in the batch's order.

        Parameters
        ----------
        sizes : sequence of int, shape (batch_size,)
            Size of each row.
        forward : callable
            Computes a group. It returns arrays by name, with one row for each of `Group.rows`, in
            that order.

        Returns
        -------
        dict of str to ndarray, each with batch_size rows
            The outputs, by name. Row ``i`` belongs to row ``i`` of the batch.

        Raises
        ------
        ModelError
            `forward` returned a different number of rows than the group has, or an output of some
            groups only, or of another shape for one than for another.
        InvalidInputError
            A size is below 1 or larger than the largest bucket.
        """
        groups = self.split(sizes)
        outputs: dict[str, list[NDArray[Any]]] = {}
        for group in groups:
            for name, output in forward(group).items():
                if len(output) != len(group.rows):
                    raise ModelError(
                        f"the model returned a wrong number of rows of output {name!r}"
                    )
                outputs.setdefault(name, []).append(output)
        if len(groups) == 1:  # it is in the batch's order
            return {name: output for name, (output,) in outputs.items()}
        rows = [row for group in groups for row in group.rows]
        return {name: _in_order(name, parts, rows, len(groups)) for name, parts in outputs.items()}


def _in_order(
    name: str, parts: Sequence[NDArray[Any]], rows: Sequence[int], groups: int
) -> NDArray[Any]:
    """Return an output in the batch's order, in a datatype that holds that of each group."""
    if len(parts) < groups:
        raise ModelError(f"the model returned output {name!r} for some of the rows only")
    try:
        joined = np.concatenate(parts)
    except (TypeError, ValueError):
        raise ModelError(
            f"the model returned rows of different shapes or types of output {name!r}"
        ) from None
    output = np.empty_like(joined)
    output[list(rows)] = joined
    return output


def pad(
    sequences: Sequence[Sequence[int]], padded_size: int, fill: int = 0
) -> tuple[IntArray, NDArray[np.bool_]]:
    """Pad sequences at their end to the same size.

    Parameters
    ----------
    sequences : sequence of sequences of int
        Each has at most `padded_size` numbers.
    padded_size : int
    fill : int
        The number to pad with.

    Returns
    -------
    array : ndarray of int64, shape (len(sequences), padded_size)
    mask : ndarray of bool, shape (len(sequences), padded_size)
        False at padding.

    Raises
    ------
    InvalidInputError
        A sequence is longer than `padded_size`.
    """
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    if lengths.size and lengths.max() > padded_size:
        raise InvalidInputError(
            f"padded size: must be at least {lengths.max()}, the longest row, not {padded_size}"
        )
    mask = np.arange(padded_size) < lengths[:, None]
    array = np.full(mask.shape, fill, np.int64)
    array[mask] = np.fromiter(itertools.chain.from_iterable(sequences), np.int64)
    return array, mask


def measure_batch_time(
    run: Callable[[int, int], object],
    *,
    counts: Sequence[int],
    sizes: Sequence[int],
    budget_s: float,
    clock_s: Callable[[], float] = time.perf_counter,
) -> BatchTime:
    """Measure and fit the time of batches on a grid of row counts and row sizes.

    The measurement keeps a time budget. In the first half, it goes through the grid from the
    cheapest point to the most expensive. It skips a point that may take longer than the time left,
    judged by the points measured so far. The second half repeats the measured points in random
    order. The fit uses the minimum time of each point, because other load on the machine can only
    add time.
    `BatchTime` extrapolates to the points that were skipped. If only the cheapest point was
    measured, the fit is a constant, with which every batch stays in one group.

    Parameters
    ----------
    run : callable
        Takes a count of rows and a size. Computes a batch of that many rows, padded to that size,
        and returns when it is done.
    counts, sizes : sequence of int
        The grid: all pairs of a count and a size are candidates.
    budget_s : float
        Time to spend. The cheapest point is run twice even if that takes longer.
    clock_s : callable
        Returns the present time in seconds.
    """
    cheapest, *others = sorted(
        itertools.product(counts, sizes), key=lambda point: (point[0] * point[1], point)
    )
    times_s: dict[tuple[int, int], list[float]] = {}

    def measure(point: tuple[int, int]) -> None:
        started_s = clock_s()
        run(*point)
        times_s.setdefault(point, []).append(clock_s() - started_s)

    def upper_bound_s(point: tuple[int, int]) -> float:
        # No term of `BatchTime` grows faster than linearly in n and quadratically in s.
        return min(
            taken[-1] * max(1.0, point[0] / count) * max(1.0, point[1] / size) ** 2
            for (count, size), taken in times_s.items()
        )

    begin_s = clock_s()
    run(*cheapest)  # the first batch includes one-time initialization
    measure(cheapest)
    for point in others:
        if clock_s() - begin_s + upper_bound_s(point) <= budget_s / 2:
            measure(point)
    shuffle = np.random.default_rng(0)
    measured_points = list(times_s)
    exhausted = False
    while not exhausted:
        for index in shuffle.permutation(len(measured_points)).tolist():
            point = measured_points[index]
            exhausted = clock_s() - begin_s + times_s[point][-1] > budget_s
            if exhausted:
                break
            measure(point)
    min_times_ms = [1e3 * min(taken) for taken in times_s.values()]
    return BatchTime.fit(
        [count for count, _ in measured_points], [size for _, size in measured_points], min_times_ms
    )
