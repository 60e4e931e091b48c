"""What an event loop waits for while it works."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.batcher.front_counts import FrontCounts
from deployments.control.loop_waits import LoopState, LoopWaits


def state(
    busy_s: float, cpu_s: float, other_cpu_s: float = 0.0, *, seconds: int = 30, lag_s: float = 0.0
) -> LoopState:
    """Return the state after so many equal seconds."""
    waits = LoopWaits()
    for _ in range(seconds):
        waits.observe(FrontCounts(1.0, 10, 0, 10, busy_s, cpu_s, other_cpu_s, lag_s))
    return waits.state


def test_a_loop_that_never_waits() -> None:
    assert state(0.5, 0.5, lag_s=0.02) == LoopState(
        pytest.approx(0.5), pytest.approx(1.0), pytest.approx(1.0), pytest.approx(0.0), 0.02
    )


@pytest.mark.parametrize(
    ("other_cpu_s", "foreign_slowdown", "shares_cores"),
    [(0.0, 3.0, True), (0.1, 2.5, True), (0.25, 1.75, False), (0.4, 1.0, False), (0.9, 1.0, False)],
)
def test_only_what_own_threads_do_not_explain_is_put_down_to_others(
    other_cpu_s: float, foreign_slowdown: float, shares_cores: bool
) -> None:
    found = state(0.6, 0.2, other_cpu_s)
    assert found.slowdown == pytest.approx(3.0)
    assert found.foreign_slowdown == pytest.approx(foreign_slowdown)
    assert found.shares_cores == shares_cores


@pytest.mark.parametrize(
    ("cpu_wait_s", "foreign_slowdown"), [(0.3, 2.5), (0.9, 3.0), (0.05, 1.75), (None, 1.75)]
)
def test_the_kernel_tells_of_waits_beside_the_own_threads(
    cpu_wait_s: float | None, foreign_slowdown: float
) -> None:
    """The loop worked for 0.6 s with 0.2 s of CPU; other threads had 0.25 s of another CPU."""
    waits = LoopWaits()
    waits.observe(FrontCounts(1.0, 10, 0, 10, 0.6, 0.2, 0.25, 0.0, cpu_wait_s))
    assert waits.state.foreign_slowdown == pytest.approx(foreign_slowdown)
    assert waits.state.slowdown == pytest.approx(3.0)


def test_a_loop_with_little_work_is_not_held_up() -> None:
    found = state(0.02, 0.001)
    assert found.foreign_wait_share == pytest.approx(0.95)
    assert not found.shares_cores


def test_a_neighbor_that_ended_is_forgotten_within_a_minute() -> None:
    waits = LoopWaits()
    for second in range(90):
        busy_s = 0.9 if second < 30 else 0.3
        waits.observe(FrontCounts(1.0, 10, 0, 10, busy_s, 0.3, 0.0, 0.0))
    assert waits.state.slowdown == pytest.approx(1.0, abs=0.01)
    assert not waits.state.shares_cores


@pytest.mark.parametrize(
    ("stalled_s", "cpu_wait_s", "lock_held"),
    [(0.6, 0.0, True), (0.6, 0.5, False), (0.1, 0.0, False), (0.6, None, True)],
)
def test_heartbeats_that_are_late_for_each_batch_show_that_batches_keep_the_lock(
    stalled_s: float, cpu_wait_s: float | None, lock_held: bool
) -> None:
    """Thirty batches a second of 30 ms each; waits for a CPU do not count."""
    waits = LoopWaits()
    counts = FrontCounts(1.0, 150, 0, 30, 0.3, 0.02, 0.0, 0.0, cpu_wait_s, stalled_s=stalled_s)
    waits.observe(counts, [0.03] * 30)
    assert waits.state.lock_held == lock_held


@pytest.mark.parametrize("batches_s", [[], [0.001] * 30], ids=["none", "of a millisecond"])
def test_nothing_is_said_of_batches_that_hardly_delay_a_heartbeat(batches_s: list[float]) -> None:
    waits = LoopWaits()
    counts = FrontCounts(1.0, 150, 0, 30, 0.3, 0.02, 0.0, 0.0, 0.0, stalled_s=0.1)
    waits.observe(counts, batches_s)
    assert not waits.state.lock_held


def test_a_wait_for_a_batch_that_sleeps_with_the_lock_is_not_put_down_to_other_processes() -> None:
    """The device thread uses no CPU, and the kernel says that the loop was given one at once."""
    waits = LoopWaits()
    waits.observe(FrontCounts(1.0, 150, 0, 30, 0.6, 0.02, 0.0, 0.0, 0.01), [0.03] * 30)
    assert waits.state.foreign_wait_share == pytest.approx(0.01 / 0.6)
    assert not waits.state.shares_cores


@given(*(4 * [st.floats(0, 1)]))
def test_any_times_give_a_valid_state(
    duration_s: float, busy_s: float, cpu_s: float, other_cpu_s: float
) -> None:
    waits = LoopWaits()
    waits.observe(FrontCounts(duration_s, 1, 0, 1, busy_s, cpu_s, other_cpu_s, 0.0))
    found = waits.state
    assert 0 <= found.utilization <= 1
    assert 1 <= found.foreign_slowdown <= max(found.slowdown, 1 + 1e-9) <= 100 + 1e-6
    assert 0 <= found.foreign_wait_share <= 1
