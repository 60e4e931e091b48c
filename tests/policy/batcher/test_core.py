"""The batcher core on virtual time."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policy.batcher.arrival_rate import PAUSE_MARGIN_S
from policy.batcher.core import BatcherCore
from policy.batcher.limits import Limits
from policy.batcher.requests import FixedPolicy, Refusal, Request, StartReason
from policy.batching_policy import BatchingPolicy
from policy.table import PolicyTable
from tests.support.batching.batcher_core import contents, make_core


def test_a_free_device_waits_for_the_control_limit_or_the_oldest_request() -> None:
    core = make_core(control_limit=3, max_wait_ms=8.0)
    core.arrive(0.0, Request(0.0, 1))
    assert core.next_batch(0.0) is None
    assert core.wake_at_s == pytest.approx(0.008)
    core.arrive(0.005, Request(0.005, 1))
    assert core.next_batch(0.005) is None
    assert core.wake_at_s == pytest.approx(0.008)
    batch = core.next_batch(0.008)
    assert batch is not None
    assert (batch.size, batch.reason) == (2, StartReason.MAX_WAIT)


@pytest.mark.parametrize("control_limit", [1, 16])
def test_a_smaller_limit_holds_before_a_policy_for_it_is_solved(control_limit: int) -> None:
    """Batches of 32 went on for as long as the solver took, after a limit of 8 was deployed."""
    core = make_core(control_limit=control_limit, max_batch_size=32)
    core.use(core.table, replace(core.limits, latency_ms=core.limits.latency_ms[:8]))
    for number in range(12):
        core.arrive(0.0, Request(0.0, 1, number))
    batch = core.next_batch(0.0)
    assert batch is not None
    assert (batch.size, batch.reason) == (8, StartReason.FULL)


def test_a_request_that_takes_too_long_is_admitted_if_nothing_else_waits() -> None:
    """Five batches of 10 ms never fit into 25 ms: refused for ever, it would not be served."""
    limits = Limits(0.0, 100, [10.0] * 4, admit_within_ms=25.0, answer_within_ms=26.0)
    core = BatcherCore(FixedPolicy(BatchingPolicy.from_control_limit(1, 4)), limits)
    core.arrive(0.0, Request(0.0, 1, "first"))
    core.next_batch(0.0)
    assert core.arrive(0.001, Request(0.001, 20, "long")) is None
    assert core.arrive(0.001, Request(0.001, 1, "next")) is Refusal.FULL
    for batch in range(5):
        core.device_free()
        assert contents(core.next_batch(0.01 + 0.01 * batch)) == ["long"]
    assert core.deadline_missed == []


def test_tries_elsewhere_are_reckoned_with_once_requests_are_refused() -> None:
    """Where half of the tries are refused, 1% of the requests come after 6.6 of them."""
    limits = Limits(0.0, 100, [10.0] * 4, admit_within_ms=40.0, try_ms=1.0, retries=9)
    core = BatcherCore(FixedPolicy(BatchingPolicy.from_control_limit(1, 4)), limits)
    core.arrive(0.0, Request(0.0, 1))
    core.next_batch(0.0)
    for _ in range(8):
        core.arrive(0.0, Request(0.0, 1))
    assert core.has_room(1, 0.0)  # done after 40 ms
    for _ in range(9):
        core.count_refused(Refusal.FULL, 1, 0.0)
    assert not core.has_room(1, 0.0066)  # done 33.4 ms later, but up to 6.64 ms are gone
    assert core.has_room(1, 0.0067)


@given(st.floats(0.2, 3.0), st.integers(0, 2**32 - 1))
def test_every_request_admitted_is_in_time(load: float, seed: int) -> None:
    latency_ms = [5.0 + b for b in range(1, 9)]
    limits = Limits(0.0, 100, latency_ms, admit_within_ms=30.0, answer_within_ms=30.0)
    core = BatcherCore(FixedPolicy(BatchingPolicy.from_control_limit(1, 8)), limits)
    random = np.random.default_rng(seed)
    arrivals_s = np.cumsum(random.exponential(1.3e-2 / (8 * load), 300)).tolist()
    free_s, taken, done_after_s = math.inf, 0, []
    while arrivals_s or free_s < math.inf:
        now_s = min(free_s, arrivals_s[0] if arrivals_s else math.inf)
        if now_s == free_s:
            core.device_free()
            free_s = math.inf
        else:
            taken += core.arrive(now_s, Request(arrivals_s.pop(0), 1)) is None
        if batch := core.next_batch(now_s):
            free_s = now_s + 1e-3 * latency_ms[batch.size - 1]
            done_after_s += [free_s - part.request.arrival_s for part in batch.slices]
    assert not core.deadline_missed
    assert len(done_after_s) == taken > 30
    assert max(done_after_s) <= 0.03 + 1e-9


def test_a_cancelled_request_gives_up_its_rows_and_its_age() -> None:
    core = make_core(control_limit=4, max_wait_ms=10.0)
    first, second = Request(0.0, 2, "first"), Request(0.004, 1, "second")
    core.arrive(0.0, first)
    core.arrive(0.004, second)
    core.cancel(first)
    core.cancel(first)
    assert core.queue_length == 1
    assert core.next_batch(0.004) is None
    assert core.wake_at_s == pytest.approx(0.014)
    assert contents(core.next_batch(0.014)) == ["second"]


def test_draining_refuses_new_requests_and_starts_waiting_ones_at_once() -> None:
    core = make_core(control_limit=4)
    core.arrive(0.0, Request(0.0, 1, "accepted"))
    core.drain()
    assert core.arrive(0.0, Request(0.0, 1)) is Refusal.FULL
    batch = core.next_batch(0.0)
    assert contents(batch) == ["accepted"]
    assert batch is not None
    assert batch.reason is StartReason.DRAIN


def test_a_deadline_shorter_than_the_processing_time_is_hopeless() -> None:
    """More replicas would not help, so it must not count as a refusal for lack of room."""
    core = make_core(max_batch_size=4, batch_ms=10.0)
    core.arrive(0.0, Request(0.0, 1))
    core.next_batch(0.0)
    assert core.arrive(0.002, Request(0.002, 1, deadline_s=0.011)) is Refusal.HOPELESS
    assert core.arrive(0.002, Request(0.002, 5, deadline_s=0.021)) is Refusal.HOPELESS
    assert core.arrive(0.002, Request(0.002, 1, deadline_s=0.013)) is Refusal.DEADLINE


def test_a_free_device_starts_in_time_for_a_deadline() -> None:
    core = make_core(control_limit=4, max_age_ms=80.0)
    assert core.arrive(0.0, Request(0.0, 1, "relaxed")) is None
    assert core.arrive(0.001, Request(0.001, 1, "hurried", deadline_s=0.03)) is None
    assert core.next_batch(0.001) is None
    assert core.wake_at_s == pytest.approx(0.03 - 0.01 - 0.002)
    assert contents(core.next_batch(core.wake_at_s)) == ["relaxed", "hurried"]
    assert core.deadline_missed == []
    core.device_free()
    assert core.arrive(0.05, Request(0.05, 1, "alone")) is None
    assert core.next_batch(0.05) is None
    assert core.wake_at_s == pytest.approx(0.13)


def test_a_request_whose_batch_would_miss_its_deadline_is_dropped() -> None:
    core = make_core(max_batch_size=2, batch_ms=10.0)
    core.arrive(0.0, Request(0.0, 1))
    core.next_batch(0.0)
    late = Request(0.0, 1, "late", deadline_s=0.025)
    core.arrive(0.0, late)
    core.arrive(0.0, Request(0.0, 1, "in time"))
    core.device_free()
    # The batch on the device took 18 ms instead of 10.
    batch = core.next_batch(0.018)
    assert contents(batch) == ["in time"]
    assert core.deadline_missed == [late]
    assert core.queue_length == 0


def test_a_batch_holds_the_kind_of_the_oldest_request_and_the_whole_queue_starts_it() -> None:
    core = make_core(control_limit=4, max_batch_size=4)
    for number, kind in enumerate("abab"):
        assert core.next_batch(0.0) is None
        core.arrive(0.0, Request(0.0, 1, number, kind=kind))
    assert contents(core.next_batch(0.0)) == [0, 2]
    core.arrive(0.0, Request(0.0, 1, 4, kind="a"))
    core.device_free()
    assert core.next_batch(0.0) is None  # three rows wait, one fewer than the limit
    core.drain()
    assert contents(core.next_batch(0.0)) == [1, 3]
    core.device_free()
    assert contents(core.next_batch(0.0)) == [4]


def test_a_failed_batch_is_tested_with_rows_of_its_own_kind_only() -> None:
    core = make_core(max_batch_size=4)
    for number, kind in enumerate("aabb"):
        core.arrive(0.0, Request(0.0, 1, number, kind=kind))
    batch = core.next_batch(0.0)
    assert batch is not None
    assert contents(batch) == [0, 1]
    core.arrive(0.0, Request(0.0, 1, 4, kind="a"))
    assert core.device_failed(batch) == []
    test = core.next_batch(0.0)
    assert test is not None
    assert (contents(test), test.slices_under_test) == ([0, 4], 1)


def test_admission_counts_the_batches_that_kinds_need() -> None:
    """Batches of four take 10 ms, and requests have 30 ms: three batches."""
    core = make_core(max_batch_size=4, batch_ms=10.0, admit_within_ms=30.0)
    for kind in "abc":
        assert core.has_room(1, 0.0)
        assert core.arrive(0.0, Request(0.0, 1, kind, kind=kind)) is None
    assert core.arrive(0.0, Request(0.0, 1, "d", kind="d")) is Refusal.FULL
    assert core.has_room(1, 0.0)  # it may be of a kind that waits
    for number in range(3):
        assert core.arrive(0.0, Request(0.0, 1, number, kind="b")) is None
    assert core.arrive(0.0, Request(0.0, 1, "full", kind="b")) is Refusal.FULL
    assert core.arrive(0.0, Request(0.0, 1, "a again", kind="a")) is None


def test_a_deadline_counts_what_waits_at_its_priority_or_above() -> None:
    core = make_core(max_batch_size=1, batch_ms=10.0, head_start_ms=1000.0)
    core.arrive(0.0, Request(0.0, 1, "on the device"))
    core.next_batch(0.0)
    for priority in (0, 0, 1, 2):
        core.arrive(0.0, Request(0.0, 1, priority, priority=priority))
    for priority, ahead in ((0, 4), (1, 2), (2, 1), (3, 0)):
        done_s = 0.01 * (2 + ahead)
        too_soon = Request(0.0, 1, deadline_s=done_s - 0.001, priority=priority)
        assert core.arrive(0.0, too_soon) is Refusal.DEADLINE
        in_time = Request(0.0, 1, deadline_s=done_s + 0.001, priority=priority)
        assert core.arrive(0.0, in_time) is None
        core.cancel(in_time)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[BatcherCore, list[tuple[float, int, bool]], float]:
    max_batch_size = draw(st.integers(1, 6))
    core = make_core(
        control_limit=draw(st.integers(1, max_batch_size)),
        max_batch_size=max_batch_size,
        max_wait_ms=draw(st.none() | st.floats(0, 20)),
        max_age_ms=draw(st.floats(0, 50)),
        max_queue_rows=draw(st.integers(1, 30)),
    )
    arrivals = draw(
        st.lists(st.tuples(st.floats(0, 0.02), st.integers(1, 9), st.booleans()), max_size=30)
    )
    return core, arrivals, draw(st.floats(0.001, 0.03))


@pytest.mark.slow
@given(workloads())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_every_accepted_row_is_served_once_and_in_order(
    workload: tuple[BatcherCore, list[tuple[float, int, bool]], float],
) -> None:
    """The batcher's invariants hold under random arrivals and cancellations."""
    core, arrivals, service_s = workload
    now_s, busy_until_s = 0.0, math.inf
    accepted: list[Request] = []
    served: dict[int, list[int]] = {}
    order: list[int] = []
    upcoming = []
    for gap_s, rows, cancels in arrivals:
        now_s += gap_s
        upcoming.append((now_s, rows, cancels))
    now_s = 0.0
    cap = core.policy(0.0).max_batch_size
    while upcoming or core.queue_length or core.device_busy:
        wake_s = math.inf if core.wake_at_s is None else core.wake_at_s
        arrival_s = upcoming[0][0] if upcoming else math.inf
        now_s = max(now_s, min(arrival_s, wake_s, busy_until_s))
        assert now_s < math.inf, "no event is left, but rows wait"
        if busy_until_s <= now_s:
            core.device_free()
            busy_until_s = math.inf
        if arrival_s <= now_s:
            _, rows, cancels = upcoming.pop(0)
            request = Request(now_s, rows, len(accepted))
            room = core.limits.max_queue_rows - core.queue_length
            fits = rows <= room or not core.queue_length
            assert (core.arrive(now_s, request) is None) == fits
            if fits:
                accepted.append(request)
                if cancels and len(accepted) > 1:
                    core.cancel(accepted[-2])
        batch = core.next_batch(now_s)
        if batch is None:
            if core.queue_length and not core.device_busy:
                assert core.wake_at_s is not None, (
                    "a free device with a queue must have a time to wake"
                )
            continue
        assert 1 <= batch.size <= cap
        assert batch.size == sum(part.stop - part.start for part in batch.slices)
        busy_until_s = now_s + service_s
        for part in batch.slices:
            assert not part.request.cancelled
            served.setdefault(part.request.content, []).extend(range(part.start, part.stop))
            order.append(part.request.content)
    assert order == sorted(order), "first in, first out"
    for request in accepted:
        answered = served.get(request.content, [])
        assert answered == list(range(request.rows)) or request.cancelled
    assert core.queue_length == 0


def test_the_time_that_a_request_waited_to_be_read_counts() -> None:
    core = make_core(batch_ms=10.0)
    core.use(core.table, replace(core.limits, admit_within_ms=97.0, answer_within_ms=100.0))
    assert core.has_room(1, 1.0, arrival_s=1.0 - 0.087)
    assert not core.has_room(1, 1.0, arrival_s=1.0 - 0.088)
    assert core.arrive(1.0, Request(1.0 - 0.088, 1)) is Refusal.FULL
    assert core.arrive(1.0, Request(1.0 - 0.091, 1)) is Refusal.EXPIRED
    assert core.arrive(1.0, Request(1.0, 1)) is None
    assert core.next_batch(1.0) is not None
    # The batch on the device takes another 10 ms.
    assert core.has_room(1, 1.0, arrival_s=1.0 - 0.077)
    assert not core.has_room(1, 1.0, arrival_s=1.0 - 0.078)


def test_a_request_that_is_served_late_may_have_waited_to_be_read() -> None:
    core = make_core(batch_ms=10.0)
    assert core.arrive(100.0, Request(0.0, 1)) is None


@given(
    age_ms=st.floats(0, 200),
    rows=st.integers(1, 12),
    ahead=st.integers(0, 12),
)
def test_no_request_is_admitted_that_would_be_admitted_only_without_its_age(
    age_ms: float, rows: int, ahead: int
) -> None:
    core = make_core(batch_ms=10.0)
    core.use(core.table, replace(core.limits, admit_within_ms=50.0, answer_within_ms=60.0))
    if ahead:
        core.arrive(1.0, Request(1.0, ahead))
    if core.has_room(rows, 1.0, arrival_s=1.0 - 1e-3 * age_ms):
        assert core.has_room(rows, 1.0)
        assert age_ms + 10.0 <= 60.0 + 1e-6


def test_a_lone_client_after_a_rush_does_not_wait_for_company_that_has_left() -> None:
    """It waited the longest wait with every request for seconds, as its rate is a mean over 5 s."""
    alone, in_company = (
        BatchingPolicy.from_control_limit(limit, 16, 18.0 if limit > 1 else None)
        for limit in (1, 16)
    )
    table = PolicyTable((4000.0,), (alone, in_company))
    core = BatcherCore(table, Limits(18.0, 100, [0.3] * 16))
    for number in range(50_000):
        now_s = 1e-4 * number
        core.arrive(now_s, Request(now_s, 1))
        if core.next_batch(now_s) is not None:
            core.device_free()
    assert core.policy(now_s) is in_company

    waits_s = []
    while now_s < 6.0:
        now_s += 0.5e-3
        core.arrive(now_s, Request(now_s, 1))
        batch = core.next_batch(now_s)
        waits_s.append(0.0)
        if batch is None:
            assert core.wake_at_s is not None
            waits_s[-1] = core.wake_at_s - now_s
            now_s = core.wake_at_s
            batch = core.next_batch(now_s)
        assert batch is not None
        core.device_free()
        now_s += 0.3e-3
    assert sum(waits_s) < 0.1
    assert not any(waits_s[100:])


@st.composite
def tables(draw: st.DrawFn) -> PolicyTable:
    cells = draw(st.integers(1, 4))
    rates = draw(st.lists(st.floats(0.5, 500.0), min_size=cells, max_size=cells, unique=True))
    policies = [
        BatchingPolicy.from_control_limit(
            draw(st.integers(1, 6)), 6, draw(st.none() | st.floats(0, 1000))
        )
        for _ in range(cells + 1)
    ]
    return PolicyTable(tuple(sorted(rates)), tuple(policies))


@given(tables(), st.lists(st.floats(1e-4, 0.2), min_size=1, max_size=20), st.floats(0, 0.05))
@example(
    # It waits for its oldest age: 19 ms remain for the batch of 10 ms and for the late timer.
    PolicyTable(
        (1.0,), (BatchingPolicy((0, 1, 2, 3, 4, 5, 6)), BatchingPolicy((0, 0, 2, 3, 4, 5, 6)))
    ),
    [0.125],
    0.02,
)
def test_once_nothing_arrives_no_request_waits_longer_than_the_policy_for_the_silence(
    table: PolicyTable, gaps_s: list[float], late_s: float
) -> None:
    """The last request of a load waited for company that had left, and was dropped at its deadline.

    The policy was not read again as the rate fell, and a timer that was late cost the answer.
    """
    limits = Limits(981.0, 100, [10.0] * 6, admit_within_ms=970.0, answer_within_ms=1000.0)
    core = BatcherCore(table, limits)
    now_s, free_s, started = 0.0, math.inf, 0
    arrivals_s = np.cumsum(gaps_s).tolist()
    waiting = list(arrivals_s)
    while core.queue_length or arrivals_s or core.device_busy:
        wake_s = math.inf if core.wake_at_s is None else core.wake_at_s
        next_s = min(free_s, arrivals_s[0] if arrivals_s else math.inf, wake_s)
        assert next_s < math.inf, "a free device with a queue must have a time to wake"
        if not arrivals_s and not core.device_busy:
            for at_s in np.linspace(now_s, next_s, 20, endpoint=False)[1:].tolist():
                policy = core.policy(at_s - 2 * PAUSE_MARGIN_S)
                assert policy.batch_size(core.queue_length) == 0
                assert at_s < waiting[started] + 1e-3 * core.longest_wait_ms(policy) + 1e-5
        now_s = next_s
        if next_s == free_s:
            core.device_free()
            free_s = math.inf
        elif arrivals_s and next_s == arrivals_s[0]:
            assert core.arrive(now_s, Request(arrivals_s.pop(0), 1)) is None
        else:
            now_s += late_s
        if batch := core.next_batch(now_s):
            started += batch.size
            free_s = now_s + 0.01
    assert (started, core.deadline_missed) == (len(gaps_s), [])


def test_the_last_request_of_a_load_does_not_wait_for_company_until_its_deadline() -> None:
    """After 200 requests/s, it waited for two seconds, which was all the time that it had."""
    waits = BatchingPolicy.from_control_limit(32, 32)
    table = PolicyTable((4.0, 100.0), (BatchingPolicy.from_control_limit(1, 32), waits, waits))
    core = BatcherCore(table, Limits(1980.0, 100, [20.0] * 32, answer_within_ms=2000.0))
    for number in range(1000):
        core.arrive(0.005 * number, Request(0.005 * number, 1))
        if core.next_batch(0.005 * number) is not None:
            core.device_free()
    last_s = now_s = 0.005 * 999
    while core.next_batch(now_s) is None:
        assert core.wake_at_s is not None
        now_s = core.wake_at_s
    assert now_s == pytest.approx(last_s + 1 / 4)
