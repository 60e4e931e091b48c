"""Which batches the event loop runs itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.batcher.placement import IN_A_ROW, BatchPlacement

LATENCY_MS = [0.05, 0.1, 0.15, 0.3, 0.5]


def short(limit_ms: float = 0.2, latency_ms: list[float] = LATENCY_MS) -> BatchPlacement:
    placement = BatchPlacement()
    placement.use(latency_ms, limit_ms, now_s=0.0)
    return placement


def test_the_loop_runs_no_batch_unless_told() -> None:
    assert BatchPlacement().largest == 0
    assert short(limit_ms=0.0).largest == 0


def test_a_size_stays_until_it_takes_twice_the_limit() -> None:
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
def test_all_sizes_within_the_limit_are_run_and_none_beyond_twice_the_limit(
    steps: list[list[float]],
) -> None:
    placement = BatchPlacement()
    for now_s, latency_ms in enumerate(steps):
        placement.use(latency_ms, 0.2, now_s=now_s)
        assert all(latency > 0.2 for latency in latency_ms[placement.largest :])
        assert all(latency <= 0.4 for latency in latency_ms[: placement.largest])


def test_a_very_long_batch_sends_its_size_and_larger_ones_back_at_once() -> None:
    placement = short()
    assert not placement.observe(3, 4e-4, 4e-4, waited=False, now_s=0.0)
    assert placement.observe(2, 2.1e-3, 2.1e-3, waited=False, now_s=0.0)
    assert placement.largest == 1


def test_long_batches_in_a_row_send_their_size_back() -> None:
    placement = short()
    outcomes = [placement.observe(3, 5e-4, 5e-4, waited=False, now_s=0.0) for _ in range(IN_A_ROW)]
    assert outcomes == [False] * (IN_A_ROW - 1) + [True]
    assert placement.largest == 2


def test_a_batch_during_which_the_thread_was_preempted_is_not_long() -> None:
    assert not short().observe(3, 5e-2, 1e-4, waited=False, now_s=0.0)


@pytest.mark.parametrize("waits_s", [1e-4, 0.04])
def test_a_model_that_waits_goes_back(waits_s: float) -> None:
    placement = short()
    outcomes = [
        placement.observe(1, waits_s, 1e-5, waited=True, now_s=0.0) for _ in range(IN_A_ROW)
    ]
    assert outcomes == [False] * (IN_A_ROW - 1) + [True]
    assert placement.largest == 0


def test_a_size_that_went_back_stays_away_for_a_while() -> None:
    placement = short()
    placement.observe(1, 0.03, 0.03, waited=False, now_s=0.0)
    placement.use(LATENCY_MS, 0.2, now_s=0.99 * BatchPlacement.BAN_S)
    assert placement.largest == 0
    placement.use(LATENCY_MS, 0.2, now_s=1.01 * BatchPlacement.BAN_S)
    assert placement.largest == 3
