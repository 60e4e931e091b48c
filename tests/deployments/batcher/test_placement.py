import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.batcher.placement import IN_A_ROW, BatchPlacement

LATENCY_MS = [0.05, 0.1, 0.15, 0.3, 0.5]


def short():
    placement = BatchPlacement()
    placement.use(LATENCY_MS, 0.2, now_s=0.0)
    return placement


def test_a_size_stays_until_it_takes_twice_the_limit():
    placement = short()
    slower = [1.9 * latency_ms for latency_ms in LATENCY_MS]
    placement.use(slower, 0.2, now_s=1.0)
    assert placement.largest == 3
    placement.use([2.8 * latency_ms for latency_ms in LATENCY_MS], 0.2, now_s=2.0)
    assert placement.largest == 2
    placement.use(slower, 0.2, now_s=3.0)
    assert placement.largest == 2, "to come back it must be within the limit"


@given(
    steps=st.lists(st.lists(st.floats(0.01, 2.0), min_size=5, max_size=5).map(sorted), min_size=1)
)
def test_all_sizes_within_the_limit_are_run_and_none_beyond_twice_the_limit(steps):
    placement = BatchPlacement()
    assert placement.largest == 0
    for now_s, latency_ms in enumerate(steps):
        placement.use(latency_ms, 0.2, now_s=now_s)
        assert all(latency > 0.2 for latency in latency_ms[placement.largest :])
        assert all(latency <= 0.4 for latency in latency_ms[: placement.largest])


@pytest.mark.parametrize(
    ("size", "duration_s", "cpu_s", "waited", "batches"),
    [
        (2, 2.1e-3, 2.1e-3, False, 1),  # ten times the limit
        (3, 5e-4, 5e-4, False, IN_A_ROW),
        (1, 1e-4, 1e-5, True, IN_A_ROW),
        (1, 0.04, 1e-5, True, IN_A_ROW),
        (1, 0.06, 1e-5, True, 1),
        # The thread was preempted, as it would be elsewhere.
        (3, 5e-2, 1e-4, False, math.inf),
    ],
)
def test_a_size_that_computes_or_waits_for_too_long_goes_back_with_all_larger_ones(
    size, duration_s, cpu_s, waited, batches
):
    placement = short()
    for number in range(1, IN_A_ROW + 1):
        goes_back = placement.observe(size, duration_s, cpu_s, waited=waited, now_s=0.0)
        assert goes_back == (number == batches)
        if goes_back:
            break
    assert placement.largest == (3 if batches == math.inf else size - 1)


def test_a_size_that_went_back_stays_away_for_a_while():
    placement = short()
    placement.observe(1, 0.03, 0.03, waited=False, now_s=0.0)
    placement.use(LATENCY_MS, 0.2, now_s=0.99 * BatchPlacement.BAN_S)
    assert placement.largest == 0
    placement.use(LATENCY_MS, 0.2, now_s=1.01 * BatchPlacement.BAN_S)
    assert placement.largest == 3
