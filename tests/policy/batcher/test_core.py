from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policy.batcher.arrival_rate import PAUSE_MARGIN_S
from policy.batcher.core import BatcherCore
from policy.batcher.limits import Limits
from policy.batcher.requests import FixedPolicy, Refusal, Request, StartReason
from policy.batching_policy import BatchingPolicy
from policy.tables.table import PolicyTable
from tests.support.batching.batcher_core import Run, contents, make_core, started


def test_a_free_device_waits_for_the_control_limit_or_the_oldest_request():
    core = make_core(control_limit=3, max_wait_ms=8.0)
    core.arrive(0.0, Request(0.0, 1))
    assert core.next_batch(0.0) is None
    assert core.wake_at_s == pytest.approx(0.008)
    core.arrive(0.005, Request(0.005, 1))
    assert core.next_batch(0.005) is None
    assert core.wake_at_s == pytest.approx(0.008)
    assert started(core, 0.008) == (2, StartReason.MAX_WAIT)


@pytest.mark.parametrize("control_limit", [1, 16])
def test_a_smaller_limit_holds_before_a_policy_for_it_is_solved(control_limit):
    """Batches of 32 went on for as long as the solver took, after a limit of 8 was deployed."""
    core = make_core(control_limit=control_limit, max_batch_size=32)
    core.use(core.table, replace(core.limits, latency_ms=core.limits.latency_ms[:8]))
    for number in range(12):
        core.arrive(0.0, Request(0.0, 1, number))
    assert started(core, 0.0) == (8, StartReason.FULL)


def test_a_request_that_takes_too_long_is_admitted_if_nothing_else_waits():
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


def test_draining_refuses_new_requests_and_starts_waiting_ones_at_once():
    core = make_core(control_limit=4)
    core.arrive(0.0, Request(0.0, 1, "accepted"))
    core.drain()
    assert core.arrive(0.0, Request(0.0, 1)) is Refusal.FULL
    assert started(core, 0.0) == (1, StartReason.DRAIN)


def test_a_deadline_shorter_than_the_processing_time_is_hopeless():
    """More replicas would not help, so it must not count as a refusal for lack of room."""
    core = make_core(max_batch_size=4, batch_ms=10.0)
    core.arrive(0.0, Request(0.0, 1))
    core.next_batch(0.0)
    assert core.arrive(0.002, Request(0.002, 1, deadline_s=0.011)) is Refusal.HOPELESS
    assert core.arrive(0.002, Request(0.002, 5, deadline_s=0.021)) is Refusal.HOPELESS
    assert core.arrive(0.002, Request(0.002, 1, deadline_s=0.013)) is Refusal.DEADLINE


def test_a_free_device_starts_in_time_for_a_deadline():
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


def test_a_request_whose_batch_would_miss_its_deadline_is_dropped():
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


def test_a_batch_holds_the_kind_of_the_oldest_request_and_the_whole_queue_starts_it():
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


def test_a_deadline_counts_what_waits_at_its_priority_or_above():
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


def test_the_time_that_a_request_waited_to_be_read_counts():
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


@st.composite
def tables(draw):
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
    table: PolicyTable, gaps_s, late_s
):
    """The last request of a load waited for company that had left, and was dropped at its deadline.

    The policy was not read again as the rate fell, and a timer that was late cost the answer.
    """
    limits = Limits(981.0, 100, [10.0] * 6, admit_within_ms=970.0, answer_within_ms=1000.0)
    core = BatcherCore(table, limits)
    times_s = np.cumsum(gaps_s).tolist()
    run = Run(core, deque(Request(time_s, 1) for time_s in times_s), timer_delay_s=late_s)
    while True:
        run.start()
        if not run.coming and core.wake_at_s is not None:
            oldest_s = times_s[sum(batch.size for batch in run.batches)]
            for at_s in np.linspace(run.now_s, core.wake_at_s, 20, endpoint=False)[1:].tolist():
                policy = core.policy(at_s - 2 * PAUSE_MARGIN_S)
                assert policy.batch_size(core.queue_length) == 0
                assert at_s < oldest_s + 1e-3 * core.longest_wait_ms(policy) + 1e-5
        if not run.advance():
            break
    assert (len(run.answered), core.deadline_missed) == (len(gaps_s), [])


def test_a_lone_client_after_a_rush_does_not_wait_for_company_that_has_left():
    """It waited the longest wait with every request for seconds, as its rate is a mean over 5 s."""
    alone, in_company = (BatchingPolicy.from_control_limit(limit, 16) for limit in (1, 16))
    core = BatcherCore(PolicyTable((1000.0,), (alone, in_company)), Limits(18.0, 100, [0.3] * 16))
    run = Run(core, batch_s=lambda _: 0.3e-3)
    run.coming += [Request(4e-4 * number, 1) for number in range(5000)]
    run.coming += [Request(2 + 0.02 * number, 1) for number in range(1, 100)]
    while run.now_s < 2:
        run.step()
    assert core.policy(1.9999) is in_company
    run.run()
    assert np.mean(run.responses_s[-80:]) == pytest.approx(0.3e-3)
