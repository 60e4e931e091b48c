import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deployments.errors import ModelError
from deployments.models.buckets import BatchTime, Bucketing, Group, measure_batch_time, pad
from policy.errors import InvalidInputError

coefficients = st.tuples(*[st.floats(0, limit) for limit in (20, 2, 1, 0.5, 0.01)])
batch_times = coefficients.map(BatchTime)
sizes_of_rows = st.lists(st.integers(1, 64), max_size=40)
buckets = st.none() | st.sets(st.integers(1, 63), max_size=6).map(lambda s: sorted(s | {64}))


def total_ms(time: BatchTime, groups: tuple[Group, ...]) -> float:
    return float(sum(time(len(group.rows), group.padded_size) for group in groups))


def partitions(rows: list[int]) -> Iterator[list[list[int]]]:
    """Yield all ways to split rows into groups."""
    if not rows:
        yield []
        return
    first, *rest = rows
    for split in partitions(rest):
        yield [[first], *split]
        for place, group in enumerate(split):
            yield [*split[:place], [first, *group], *split[place + 1 :]]


@given(sizes_of_rows, batch_times, buckets)
def test_every_row_is_in_exactly_one_group(sizes, time, buckets):
    groups = Bucketing(time, buckets).split(sizes)
    assert sorted(row for group in groups for row in group.rows) == list(range(len(sizes)))
    assert all(list(group.rows) == sorted(group.rows) for group in groups)


@given(sizes_of_rows, batch_times, buckets)
def test_a_group_is_padded_to_the_smallest_bucket_that_holds_its_longest_row(sizes, time, buckets):
    for group in Bucketing(time, buckets).split(sizes):
        longest = max(sizes[row] for row in group.rows)
        allowed = range(1, 65) if buckets is None else buckets
        assert group.padded_size == min(size for size in allowed if size >= longest)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=7), batch_times, buckets)
def test_no_other_split_takes_less_time(sizes, time, buckets):
    bucketing = Bucketing(time, buckets)
    padded = bucketing.padded_sizes(sizes)
    best = min(
        sum(float(time(len(group), padded[group].max())) for group in split)
        for split in partitions(list(range(len(sizes))))
    )
    assert total_ms(time, bucketing.split(sizes)) == pytest.approx(best, rel=1e-9, abs=1e-9)


def test_an_empty_batch_has_no_groups():
    assert Bucketing(BatchTime((1.0, 1.0, 1.0, 1.0, 1.0))).split([]) == ()


@given(sizes_of_rows, batch_times)
def test_outputs_are_in_the_order_of_the_batch(sizes, time):
    def forward(group):
        rows = np.array(group.rows)
        return {"row": rows, "pair": np.stack([rows, [sizes[row] for row in rows]], axis=1)}

    outputs = Bucketing(time).run(sizes, forward)
    if sizes:
        assert outputs["row"].tolist() == list(range(len(sizes)))
        assert outputs["pair"][:, 1].tolist() == sizes


EACH_ALONE = Bucketing(BatchTime((0.0, 0.0, 0.0, 1.0, 0.0)))


@pytest.mark.parametrize(
    "values",
    [[b"AB", b"LONGER TEXT", b"C"], [1, 2.75, 3]],
    ids=["texts of different lengths", "whole numbers and others"],
)
def test_no_group_is_cut_to_the_type_of_the_first(values: list[Any]) -> None:
    outputs = EACH_ALONE.run([1, 100, 2], lambda group: {"y": np.array([values[group.rows[0]]])})
    assert outputs["y"].tolist() == values


@pytest.mark.parametrize(
    ("of_second", "message"),
    [({"y": np.zeros((1, 1))}, "different shapes"), ({"z": np.zeros((1, 3))}, "some of the rows")],
)
def test_groups_whose_outputs_do_not_fit_together_are_an_error(
    of_second: dict[str, Any], message: str
) -> None:
    """A row of one value was repeated; one that was missing held what the memory did."""
    of_groups = iter([{"y": np.zeros((1, 3))}, of_second])
    with pytest.raises(ModelError, match=message):
        EACH_ALONE.run([1, 2], lambda _: next(of_groups))


def test_one_output_row_is_never_broadcast_to_a_group():
    bucketing = Bucketing(BatchTime((1.0, 0.0, 0.0, 1.0, 0.0)))
    with pytest.raises(ModelError, match="wrong number of rows of output 'y'"):
        bucketing.run([3, 3, 60], lambda group: {"y": np.zeros((1, 2))})


@pytest.mark.parametrize("buckets", [[], [0, 8], [8, 8], [16, 8], [8.0, 16.0], [-4]])
def test_wrong_buckets_are_rejected(buckets):
    with pytest.raises(InvalidInputError, match="buckets: must be increasing whole numbers"):
        Bucketing(BatchTime((1.0, 0.0, 0.0, 0.0, 0.0)), buckets)


@pytest.mark.parametrize(
    ("sizes", "message"), [([4, 0], "at least 1, not 0"), ([4, 17], "largest bucket, 16, not 17")]
)
def test_a_row_that_fits_no_bucket_is_rejected(sizes, message):
    with pytest.raises(InvalidInputError, match=message):
        Bucketing(BatchTime((1.0, 0.0, 0.0, 0.0, 0.0)), [8, 16]).split(sizes)


@given(batch_times, st.integers(1, 64), st.integers(1, 64))
def test_time_never_decreases_with_count_or_size(time, count, size):
    assert time(count + 1, size) >= time(count, size)
    assert time(count, size + 1) >= time(count, size)


COUNTS, SIZES = (1, 4, 16), (8, 16, 32, 64, 128)
GRID = list(itertools.product(COUNTS, SIZES))


@given(coefficients)
def test_the_fit_recovers_exact_times(coefficients):
    assume(sum(coefficients) > 1e-3)
    truth = BatchTime(coefficients)
    counts, sizes = np.array(GRID).T
    fitted = BatchTime.fit(counts, sizes, truth(counts, sizes))
    assert fitted.max_relative_error < 1e-6
    np.testing.assert_allclose(fitted([2, 32], [20, 256]), truth([2, 32], [20, 256]), rtol=1e-4)


@pytest.mark.parametrize("times_ms", [[], [1.0, 0.0], [1.0, -1.0], [1.0, float("nan")]])
def test_invalid_times_are_rejected(times_ms):
    with pytest.raises(InvalidInputError, match="batch times: must be above 0"):
        BatchTime.fit([1] * len(times_ms), [8] * len(times_ms), times_ms)


class VirtualDevice:
    """Takes the time of a `BatchTime` on a virtual clock; the first batch takes `first_s` more."""

    def __init__(self, time, first_s=0.0):
        self.time, self.first_s, self.now_s, self.ran = time, first_s, 0.0, []

    def run(self, count, size):
        self.now_s += 1e-3 * float(self.time(count, size)) + (0.0 if self.ran else self.first_s)
        self.ran.append((count, size))

    def measure(self, budget_s):
        return measure_batch_time(
            self.run, counts=COUNTS, sizes=SIZES, budget_s=budget_s, clock_s=lambda: self.now_s
        )


@given(batch_times, st.floats(0.01, 2), st.floats(0, 1))
def test_measuring_keeps_to_its_budget(time, budget_s, first_s):
    assume(time(1, 8) > 0.1)
    device = VirtualDevice(time, first_s)
    device.measure(budget_s)
    least_s = first_s + 2e-3 * float(time(1, 8))
    assert device.now_s <= max(budget_s, least_s) * (1 + 1e-9)


@given(batch_times)
def test_with_enough_time_every_point_is_measured_several_times(time):
    assume(time(1, 8) > 0.1)
    device = VirtualDevice(time)
    fitted = device.measure(budget_s=10 * 1e-3 * float(sum(time(*point) for point in GRID)))
    assert all(device.ran.count(point) >= 3 for point in GRID)
    np.testing.assert_allclose(fitted(32, 200), time(32, 200), rtol=1e-4)


def test_skipped_points_are_extrapolated():
    time = BatchTime((5.0, 0.1, 0.0, 0.25, 4e-4))
    device = VirtualDevice(time)
    fitted = device.measure(budget_s=0.5)
    assert (16, 128) not in device.ran
    assert float(fitted(16, 128)) == pytest.approx(float(time(16, 128)), rel=0.1)


def test_a_device_too_slow_to_measure_gets_one_group():
    slow = BatchTime((500.0, 100.0, 0.0, 50.0, 0.0))
    fitted = VirtualDevice(slow).measure(budget_s=0.5)
    assert len(Bucketing(fitted).split([3, 90, 7, 120])) == 1


def test_the_first_batch_is_not_counted():
    device = VirtualDevice(BatchTime((1.0, 0.0, 0.0, 0.0, 0.0)), first_s=10.0)
    assert float(device.measure(budget_s=1.0)(1, 8)) == pytest.approx(1.0)


def test_one_slow_batch_does_not_move_the_fit(monkeypatch):
    device = VirtualDevice(BatchTime((1.0, 0.0, 0.0, 0.0, 0.0)))
    run = device.run

    def hiccup(count, size):
        run(count, size)
        device.now_s += 0.05 if len(device.ran) == 40 else 0.0

    monkeypatch.setattr(device, "run", hiccup)
    assert float(device.measure(budget_s=1.0)(4, 32)) == pytest.approx(1.0)


@given(st.lists(st.lists(st.integers(1, 99), max_size=9), max_size=9), st.integers(0, 3))
def test_the_mask_recovers_the_sequences(sequences, more):
    padded_size = max(map(len, sequences), default=0) + more
    array, mask = pad(sequences, padded_size, fill=-1)
    assert array.shape == mask.shape == (len(sequences), padded_size)
    assert [row[kept].tolist() for row, kept in zip(array, mask, strict=True)] == sequences
    assert (array[~mask] == -1).all()
    assert all(kept[: len(sequence)].all() for kept, sequence in zip(mask, sequences, strict=True))


def test_padding_never_truncates_a_sequence():
    with pytest.raises(
        InvalidInputError, match="padded size: must be at least 3, the longest row, not 2"
    ):
        pad([[1, 2, 3]], 2)
