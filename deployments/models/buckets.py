"""Rows of different sizes in one batch: into which groups to split it, and what each is padded to.

A model whose time depends on the size of its rows (the length of a text, say) computes a batch as
long as its longest row, and pads the others. Split into groups of like size, less is padded; but
each group pays the device's fixed cost again. `Bucketing.split` weighs the two exactly, with the
device's own times, which `measure_batch_time` fits as the model loads::

    def load(self, device):
        ...
        time = measure_batch_time(run, counts=(1, 4, 16), sizes=(8, 16, 32, 64), budget_s=1.0)
        self.bucketing = Bucketing(time)

    def forward(self, batch):
        rows = tokenize(batch["text"])
        return self.bucketing.run([len(row) for row in rows], lambda group: ...)

Nothing here knows what the rows are.
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
TimeOfGroup = Callable[[IntArray, IntArray], FloatArray]
"""(counts, padded sizes), of shapes that broadcast, to milliseconds."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a batch that are computed together.

    Attributes
    ----------
    rows : tuple of int
        Their places in the batch, increasing.
    padded_size : int
        What each is padded to.
    """

    rows: tuple[int, ...]
    padded_size: int


@dataclass(frozen=True)
class BatchTime:
    """Time of `n` rows padded to size `s`: a + b·n + c·s + d·n·s + e·n·s², none negative.

    That is what networks over sequences cost: `d` is for layers that see each position alone, `e`
    for attention, `c` for steps that follow one another. It never decreases, in `n` or in `s`.

    Attributes
    ----------
    coefficients_ms : tuple of float
        a, b, c, d, e.
    max_relative_error : float
        Over the times that it was fitted to.
    """

    coefficients_ms: tuple[float, float, float, float, float]
    max_relative_error: float = 0.0

    def __call__(self, counts: ArrayLike, sizes: ArrayLike) -> FloatArray:
        """Time in milliseconds; the shapes broadcast."""
        count, size = np.asarray(counts, np.float64), np.asarray(sizes, np.float64)
        a, b, c, d, e = self.coefficients_ms
        return a + c * size + count * (b + size * (d + e * size))

    @classmethod
    def fit(
        cls, counts: Sequence[int], sizes: Sequence[int], times_ms: Sequence[float]
    ) -> "BatchTime":
        """Fit it to measured times: least squares of the relative errors.

        Parameters
        ----------
        counts, sizes : sequence of int, shape (k,)
            Rows, and what they were padded to.
        times_ms : sequence of float, shape (k,)
            Above 0.

        Raises
        ------
        InvalidInputError
            There are no times, or one is not above 0.
        """
        measured = np.array(times_ms, np.float64)
        if not measured.size or not (measured > 0).all():
            raise InvalidInputError("batch times: must be above 0, and at least one")
        count, size = np.array(counts, np.float64), np.array(sizes, np.float64)
        terms = np.stack([np.ones_like(count), count, size, count * size, count * size**2], axis=1)
        # The terms differ by magnitudes; brought to one scale, the solver keeps its digits.
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
        Must not decrease with the size.
    buckets : sequence of int, optional
        The sizes that a group may be padded to, increasing: for a device that is best with few
        shapes, or with round ones. If not given, each group is padded to its longest row.

    Raises
    ------
    InvalidInputError
        The buckets are not increasing whole numbers of at least 1.
    """

    def __init__(self, time_ms: TimeOfGroup, buckets: Sequence[int] | None = None) -> None:
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

    def padded(self, sizes: Sequence[int] | IntArray) -> IntArray:
        """Give the bucket of each size: the smallest that holds it.

        Raises
        ------
        InvalidInputError
            A size is not at least 1, or larger than the largest bucket.
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

        Some best split is contiguous in the order of size: with the numbers of rows per group kept,
        to give the largest rows to the group that is padded most makes no other group larger. So
        dynamic programming over the ends of the groups finds the best of all splits, in n² steps:
        the least time of the first j rows is the least, over the start i of the last group, of
        that of the first i rows and the time of j - i rows padded to the size of row j.

        Parameters
        ----------
        sizes : sequence of int
            Size of each row.

        Returns
        -------
        tuple of Group
            Each row in one group; the groups by increasing size; none for an empty batch.
        """
        order = np.argsort(sizes, kind="stable")
        padded = self.padded(np.asarray(sizes, np.int64)[order])
        number = len(padded)
        # time[count - 1, end - 1]: of the `count` rows that end before row `end`.
        time_ms = self._time_ms(np.arange(1, number + 1)[:, None], padded[None, :])
        least_ms = np.zeros(number + 1)
        start_of = np.zeros(number + 1, np.intp)
        for end in range(1, number + 1):
            totals_ms = least_ms[:end] + time_ms[end - 1 :: -1, end - 1]
            start_of[end] = start = totals_ms.argmin()
            least_ms[end] = totals_ms[start]
        groups = []
        end = number
        while end:
            start = start_of[end]
            rows = tuple(sorted(order[start:end].tolist()))
            groups.append(Group(rows, int(padded[end - 1])))
            end = start
        return tuple(reversed(groups))

    def run(
        self, sizes: Sequence[int], forward: Callable[[Group], Mapping[str, NDArray[Any]]]
    ) -> dict[str, NDArray[Any]]:
        """Split a batch, compute each group, and put the answers in the order of the batch.

        Parameters
        ----------
        sizes : sequence of int, shape (batch_size,)
            Size of each row.
        forward : callable
            Answers a group: arrays by name, a row for each of `Group.rows`, in their order.

        Returns
        -------
        dict of str to ndarray
            The answers; row ``i`` is for row ``i`` of the batch.

        Raises
        ------
        ModelError
            `forward` gave another number of rows than the group has.
        """
        outputs: dict[str, NDArray[Any]] = {}
        for group in self.split(sizes):
            for name, answer in forward(group).items():
                if len(answer) != len(group.rows):
                    raise ModelError(f"the model gave output {name!r} in a wrong number of rows")
                if len(answer) == len(sizes):  # one group: its rows are in the batch's order
                    outputs[name] = answer
                    continue
                if name not in outputs:
                    outputs[name] = np.empty((len(sizes), *answer.shape[1:]), answer.dtype)
                outputs[name][list(group.rows)] = answer
        return outputs


def pad(
    sequences: Sequence[Sequence[int]], padded_size: int, fill: int = 0
) -> tuple[IntArray, NDArray[np.bool_]]:
    """Pad sequences to one size.

    Parameters
    ----------
    sequences : sequence of sequences of int
        Each of at most `padded_size` numbers.
    padded_size : int
        Numbers per row.
    fill : int
        What to pad with, at the end.

    Returns
    -------
    array : ndarray of int64, shape (len(sequences), padded_size)
    mask : ndarray of bool, the same shape
        True where `array` holds a number of the sequence.

    Raises
    ------
    InvalidInputError
        A sequence is longer than `padded_size`.
    """
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    if lengths.size and lengths.max() > padded_size:
        raise InvalidInputError(f"padded size: {padded_size} cannot hold {lengths.max()}")
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
    """Measure what a model takes on a grid of batch sizes and row sizes, within a time budget.

    From the cheapest combination to the dearest, as far as half of the budget reaches: a
    combination is not begun when the times of those before it leave open that it takes longer than
    is left. The rest of the budget repeats what was reached, in random order; the least times are
    fitted, since what else runs on the machine only adds. What was not reached is extrapolated by
    the form of `BatchTime`; where nothing but the cheapest was, that is a constant, which leaves
    every batch in one group.

    Parameters
    ----------
    run : callable
        Takes a count and a size; computes a batch of so many rows padded to that size, and
        returns when it is done.
    counts, sizes : sequence of int
        The grid.
    budget_s : float
        Time to spend; the cheapest combination is run twice whatever it takes.
    clock_s : callable
        The clock.

    Returns
    -------
    BatchTime
        Fitted.
    """
    cheapest, *others = sorted(
        itertools.product(counts, sizes), key=lambda point: (point[0] * point[1], point)
    )
    times_s: dict[tuple[int, int], list[float]] = {}

    def measure(point: tuple[int, int]) -> None:
        entered_s = clock_s()
        run(*point)
        times_s.setdefault(point, []).append(clock_s() - entered_s)

    def at_most_s(point: tuple[int, int]) -> float:
        # No term of `BatchTime` grows faster than the count, or than the square of the size.
        return min(
            taken[-1] * max(1.0, point[0] / count) * max(1.0, point[1] / size) ** 2
            for (count, size), taken in times_s.items()
        )

    started_s = clock_s()
    run(*cheapest)  # the first batch of all pays for much else
    measure(cheapest)
    for point in others:
        if clock_s() - started_s + at_most_s(point) <= budget_s / 2:
            measure(point)
    shuffle = np.random.default_rng(0)
    reached = list(times_s)
    spent = False
    while not spent:
        for index in shuffle.permutation(len(reached)).tolist():
            point = reached[index]
            spent = clock_s() - started_s + times_s[point][-1] > budget_s
            if spent:
                break
            measure(point)
    least_ms = [1e3 * min(taken) for taken in times_s.values()]
    return BatchTime.fit([count for count, _ in reached], [size for _, size in reached], least_ms)
