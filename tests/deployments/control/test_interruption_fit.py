"""When the interruptions of the model follow those measured."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.batcher.front_counts import FrontCounts
from deployments.control.interruption_fit import InterruptionFit, two_digits
from tests.support.front_counts import front_counts


def second(lengths_s: list[float], working_cpu_s: float = 0.6) -> FrontCounts:
    return front_counts(1000, 500, working_cpu_s=working_cpu_s, interruptions_s=lengths_s)


def fitted(
    lengths_s: list[float], seconds: int = 30, foreign_share: float = 1.0
) -> InterruptionFit:
    fit = InterruptionFit()
    for _ in range(seconds):
        fit.observe(second(lengths_s), foreign_share)
    return fit


def test_share_and_lengths_are_those_seen() -> None:
    rng = np.random.default_rng(1)
    fit, seen_s = InterruptionFit(), []
    for _ in range(30):
        lengths_s = (1e-3 * rng.lognormal(-1, 1, size=50)).tolist()
        seen_s += lengths_s
        fit.observe(second(lengths_s), 1.0)
    found, held_up_s = fit.measured(), sum(seen_s)
    assert found is not None
    assert found.share == pytest.approx(held_up_s / (held_up_s + 30 * 0.6), rel=0.05)
    assert found.lengths_ms == pytest.approx([1e3 * s for s in seen_s], rel=0.05)
    assert found.work_ms == pytest.approx([1e3 * 0.6 / 50] * len(seen_s), rel=0.05)
    report = fit.report()
    assert report["share"] == pytest.approx(found.share, rel=0.05)
    assert report["longest_ms"] == pytest.approx(max(found.lengths_ms), rel=0.05)


def test_of_many_the_longest_are_told_apart_and_the_others_are_work() -> None:
    rng = np.random.default_rng(1)
    fit, seen_s = InterruptionFit(), []
    for _ in range(30):
        lengths_s = rng.uniform(1e-4, 5e-4, 200).tolist()
        seen_s += lengths_s
        fit.observe(second(lengths_s), 1.0)
    found, longest_s = fit.measured(), sorted(seen_s)[-2048:]
    assert found is not None
    assert sorted(found.lengths_ms) == pytest.approx([1e3 * s for s in longest_s], rel=0.05)
    whole_s = sum(seen_s) + 30 * 0.6
    assert found.share == pytest.approx(sum(longest_s) / whole_s, rel=0.05)
    times_ms = sum(found.lengths_ms) + sum(found.work_ms)
    assert times_ms == pytest.approx(1e3 * whole_s, rel=0.05)
    assert fit.report()["share"] == pytest.approx(sum(seen_s) / whole_s)


def test_the_order_in_which_they_came_is_kept() -> None:
    long_after_long = [1e-4] * 50 + [2e-3] * 50
    found = fitted(long_after_long, seconds=1).measured()
    assert found is not None
    assert found.lengths_ms == pytest.approx([1e3 * s for s in long_after_long])


def test_waits_that_the_model_has_as_work_do_not_count() -> None:
    half, whole = (fitted([1e-3] * 100, foreign_share=share).measured() for share in (0.5, 1.0))
    assert half is not None
    assert whole is not None
    assert half.share == pytest.approx(0.05 / 0.65, rel=0.05)
    assert whole.share == pytest.approx(0.1 / 0.7, rel=0.05)


def test_few_or_short_interruptions_do_not_matter() -> None:
    assert fitted([1e-3] * 3).measured() is None
    assert fitted([2e-5] * 100).measured() is None
    assert InterruptionFit().measured() is None


def test_a_few_more_than_matter_are_all_told() -> None:
    lengths_s = [1e-3 * (1 + number) for number in range(InterruptionFit.MIN_SEEN)]
    found = fitted(lengths_s, seconds=1).measured()
    assert found is not None
    assert found.lengths_ms == pytest.approx([1e3 * s for s in lengths_s])


@given(st.floats(1e-6, 1e6))
def test_two_digits_are_those_nearest(value: float) -> None:
    (rounded,) = two_digits(np.array([value])).tolist()
    assert rounded == pytest.approx(float(f"{rounded:.2g}"))
    assert abs(rounded - value) <= 0.5001 * 10.0 ** (math.floor(math.log10(value)) - 1)


def test_they_are_forgotten() -> None:
    fit = fitted([1e-3] * 100)
    for _ in range(31):
        fit.observe(second([]), 1.0)
    assert fit.measured() is None


def test_two_looks_in_a_row_must_find_them_wrong() -> None:
    fit = fitted([1e-3] * 100)
    assert [fit.revise() for _ in range(3)] == [False, True, False]
    assert fit.interruptions == fit.measured()
    for _ in range(30):
        fit.observe(second([1.2e-3] * 100), 1.0)
    assert not any(fit.revise() for _ in range(3))
    for _ in range(30):
        fit.observe(second([4e-3] * 100), 1.0)
    assert [fit.revise() for _ in range(2)] == [False, True]
    for _ in range(31):
        fit.observe(second([]), 1.0)
    assert [fit.revise() for _ in range(2)] == [False, True]
    assert fit.interruptions is None
