import asyncio
from bisect import bisect_left
from functools import partial

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from deployments.batcher.event_loop_meter import HEARTBEAT_S, EventLoopMeter
from tests.support.clocks.virtual_loop import VirtualLoop

BOTH_LOOPS = pytest.mark.parametrize("marks_after_poll", [False, True], ids=["uvloop", "asyncio"])


def meter_on(loop: VirtualLoop):
    return EventLoopMeter(
        loop.call_soon,
        loop.call_later,
        clock=lambda: loop.now_s,
        thread_clock=lambda: loop.cpu_s,
        cpu_wait_clock=lambda: loop.now_s - loop.cpu_s,
    )


def drive(loop: VirtualLoop, meter: EventLoopMeter, requests, end_s):
    """Read requests, each readable at a time and with work to do; return (readable, since)."""
    since: list[tuple[float, float]] = []

    def read(readable_s, work_s):
        since.append((readable_s, meter.request_read(loop.now_s)))
        loop.work(work_s)

    for readable_s, work_s in requests:
        loop.read_at(readable_s, partial(read, readable_s, work_s))
    loop.run_until(end_s)
    return since


@BOTH_LOOPS
@given(
    gaps_s=st.lists(st.floats(0, 0.004), min_size=1, max_size=40),
    works_s=st.lists(st.floats(1e-5, 0.003), min_size=40, max_size=40),
)
def test_a_request_was_never_readable_before_the_time_that_the_meter_says(
    marks_after_poll, gaps_s, works_s
):
    loop = VirtualLoop(marks_after_poll=marks_after_poll)
    meter = meter_on(loop)
    readable_s, requests = 1.0, []
    for gap_s, work_s in zip(gaps_s, works_s, strict=False):
        readable_s += gap_s
        requests.append((readable_s, work_s))
    found = drive(loop, meter, requests, 2.0)
    assert len(found) == len(requests)
    for readable_s, since_s in found:
        # Sound: it is no later than the truth. The poll of an asyncio loop precedes the marker.
        assert since_s <= readable_s + 3e-6
        # Tight: the poll that found the request, or the one before it, is no earlier.
        polls = bisect_left(loop.polls_s, readable_s)
        assert since_s >= loop.polls_s[max(0, polls - 1)] - 3e-6 or since_s >= readable_s - 3e-6


def test_a_loop_kept_from_running_is_seen_by_its_overdue_heartbeat():
    loop = VirtualLoop()
    meter = meter_on(loop)
    # Another thread holds the interpreter's lock from 1.001 to 1.101; a request comes at 1.05.
    loop.read_at(1.0, lambda: meter.request_read(loop.now_s))
    found: list[float] = []

    def read_after_lock():
        loop.now_s = 1.101
        found.append(meter.request_read(loop.now_s))

    loop.read_at(1.0 + HEARTBEAT_S - 1e-3, read_after_lock)
    loop.run_until(2.0)
    assert found == pytest.approx([1.0 + HEARTBEAT_S])
    assert meter.take().longest_lag_s == pytest.approx(0.101 - HEARTBEAT_S)


def test_heartbeat_and_marker_rest_without_work():
    loop = VirtualLoop()
    meter = meter_on(loop)
    drive(loop, meter, [(1.0, 0.001)], 5.0)
    iterations = len(loop.polls_s)
    loop.run_until(60.0)
    assert len(loop.polls_s) - iterations <= 1
    assert meter.readable_since_s(loop.now_s) == loop.now_s


def test_counts_and_times_since_the_last_take():
    loop = VirtualLoop()
    meter = meter_on(loop)

    def read():
        meter.request_read(loop.now_s)
        loop.work(0.003, cpu_s=0.001)

    def refuse():
        meter.request_read(loop.now_s)
        meter.requests_refused(1)

    def end_batch():
        loop.work(0.02)
        meter.batch_ended(loop.now_s, forward_s=0.02, forward_cpu_s=0.02)
        loop.work(0.001)

    for time_s, callback in ((0.1, read), (0.2, read), (0.3, refuse), (0.4, end_batch)):
        loop.read_at(time_s, callback)
    loop.run_until(2.0)
    counts = meter.take()
    assert (counts.requests, counts.refused, counts.batches) == (3, 1, 1)
    assert counts.duration_s == pytest.approx(2.0, rel=1e-3)
    assert counts.busy_s == pytest.approx(0.007, abs=1e-4)
    assert counts.cpu_s == pytest.approx(0.023, abs=1e-4)
    assert counts.work_cpu_s == pytest.approx(0.003, abs=1e-4)
    assert counts.cpu_wait_s == pytest.approx(loop.now_s - loop.cpu_s)
    again = meter.take()
    assert (again.requests, again.busy_s, again.longest_lag_s) == (0, 0, 0)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_on_real_loops_a_request_behind_work_was_readable_when_the_work_began(new_loop):
    now_s = 1.0

    async def run():
        nonlocal now_s
        loop = asyncio.get_running_loop()
        meter = EventLoopMeter(loop.call_soon, loop.call_later, clock=lambda: now_s)
        since_s = [meter.request_read(now_s)]
        now_s = 1.005  # the request took 5 ms
        await asyncio.sleep(0)
        since_s.append(meter.request_read(now_s))
        now_s = 1.008
        await asyncio.sleep(0)
        since_s.append(meter.request_read(now_s))
        for _ in range(4):
            await asyncio.sleep(0)
        return [*since_s, meter.readable_since_s(now_s)]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(run()) == [1.0, 1.0, 1.005, 1.008]


@BOTH_LOOPS
@pytest.mark.parametrize("batches_s", [0.0, 10e-3])
def test_the_end_of_a_steady_iteration_is_foreseen(marks_after_poll, batches_s):
    """Ten connections, each of which sends its next request as soon as one was read.

    Batches that run before an iteration reads do not make its reading look slow.
    """
    loop = VirtualLoop(marks_after_poll=marks_after_poll)
    meter = meter_on(loop)
    left_s: list[float] = []

    def read():
        meter.request_read(loop.now_s)
        left_s.append(meter.time_left_s(loop.now_s))
        loop.work(1e-3)
        if batches_s and len(left_s) % 10 == 0:
            loop.call_soon(lambda: loop.work(batches_s))
        loop.read_at(loop.now_s, read)

    for _ in range(10):
        loop.read_at(1.0, read)
    assert meter.time_left_s(0.0) == 0.0
    loop.run_until(1.1)
    for number in range(20, 40):
        if number % 10 or not batches_s:
            assert left_s[number] == pytest.approx(1e-3 * (10 - number % 10), abs=1e-4)
    assert meter.take().longest_lag_s == pytest.approx(10e-3 + batches_s, rel=0.05)
