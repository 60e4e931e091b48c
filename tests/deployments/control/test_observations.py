import math
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.batcher.event_loop_meter import EventLoopMeter
from deployments.batcher.model_runner import BatchRecord
from deployments.control.observations import BATCHES_SHOWN, ProxyDelay, ReplicaObserver
from policy.batcher.requests import StartReason
from policy.objective import ServiceLevelObjective

# 125 ms is exact in binary as seconds, too.
SLA = ServiceLevelObjective(125.0, 99.0)
LIMIT_S = 0.125


def counts(observer: ReplicaObserver):
    return observer.answered_rows, observer.late_rows


@pytest.mark.parametrize(
    ("happens", "counted"),
    [
        (lambda observer: observer.answered(2, LIMIT_S), (2, 0)),
        (lambda observer: observer.answered(2, math.nextafter(LIMIT_S, 1.0)), (2, 2)),
        # A deadline counts if it allowed the time of the SLA, even if it was given up before.
        (lambda observer: observer.deadline_missed(2, 0.1, deadline_ms=124.0), (0, 0)),
        (lambda observer: observer.deadline_missed(2, 0.1, deadline_ms=125.0), (2, 2)),
        (lambda observer: observer.client_left(2, LIMIT_S), (0, 0)),
        (lambda observer: observer.client_left(2, 0.126), (2, 2)),
    ],
)
def test_what_took_longer_than_the_sla_allows_is_late(happens, counted):
    observer = ReplicaObserver(SLA)
    happens(observer)
    assert counts(observer) == counted
    observer.answered(1, 0.1)
    observer.sla = SLA.after(50.0)
    observer.answered(1, 0.1)
    assert counts(observer) == (counted[0] + 2, counted[1] + 1)


def test_what_requests_wait_in_haproxy_makes_them_late_in_arrears():
    observer = ReplicaObserver(SLA)
    for response_time_s in (0.01, 0.05, 0.2):
        observer.answered(2, response_time_s)
    observer.deadline_missed(4, 0.01, deadline_ms=200.0)
    assert counts(observer) == (10, 6)
    # On average (0.01 + 0.05 + 0.2 + 0.01) / 4 here, and 0.07 more there.
    observer.proxy_delay.update(67.5 + 80.0, allowed_ms=0.0)
    seen = observer.take(refused=3)
    assert seen.response_times_s == pytest.approx([0.09, 0.13, 0.28, 0.09])
    assert (seen.late_answers, counts(observer)) == (3, (10, 8))
    assert (seen.proxy_delay_ms, seen.refused) == (pytest.approx(80.0), 3)
    assert not observer.take().response_times_s.size


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20), st.floats(0.0, 1e3), st.floats(0.0, 5.0)
)
def test_the_proxy_delay_is_what_haproxy_measures_beyond_the_replica(
    response_times_s, mean_ms, allowed_ms
):
    """Its means are in whole ms, so less than that may be none."""
    delay = ProxyDelay()
    for response_time_s in response_times_s:
        delay.answered(response_time_s)
    delay.update(mean_ms, allowed_ms)
    expected_ms = mean_ms - allowed_ms - 1e3 * sum(response_times_s) / len(response_times_s)
    assert 1e3 * delay.delay_s == pytest.approx(expected_ms if expected_ms > 1 else 0.0, abs=1e-6)


def test_requests_add_up_until_haproxy_has_news_and_old_news_is_forgotten():
    delay = ProxyDelay()
    delay.answered(0.010)
    delay.update(None, 0.0)
    delay.answered(0.030)
    delay.update(50.0, 0.0)
    for _ in range(9):
        delay.update(None, 0.0)
        assert delay.delay_s == pytest.approx(0.030)
    delay.update(None, 0.0)
    assert delay.delay_s == 0.0


@pytest.mark.parametrize("most", [3, 10, 100])
def test_a_sample_holds_no_more_than_asked_for_and_each_at_most_once(most):
    observer = ReplicaObserver(SLA)
    for number in range(10):
        observer.answered(1, 1e-3 * number)
        observer.batch_ended(BatchRecord(number, StartReason.FULL, 0, 0.0, 0.01, False))
    seen = observer.take()
    sample = seen.sampled(most)
    times_s, sizes = sample.response_times_s.tolist(), [record.size for record in sample.batches]
    for drawn, of in ((times_s, seen.response_times_s.tolist()), (sizes, list(range(10)))):
        assert len(drawn) == len(set(drawn)) == min(most, 10)
        assert set(drawn) <= set(of)


def test_the_last_batches_are_kept_and_each_is_handed_over_once():
    observer = ReplicaObserver(SLA)
    for size in range(1, BATCHES_SHOWN + 3):
        observer.batch_ended(BatchRecord(size, StartReason.FULL, 0, 0.0, 0.01, False))
    assert len(observer.take().batches) == BATCHES_SHOWN + 2
    assert observer.take().batches == []
    assert [record.size for _, record in observer.last_batches] == list(range(3, BATCHES_SHOWN + 3))


def test_a_batch_that_the_event_loop_computed_is_left_out_of_what_it_spent():
    meter = mock.create_autospec(EventLoopMeter, instance=True)
    observer = ReplicaObserver(SLA, meter)
    for on_loop in (True, False):
        observer.batch_ended(BatchRecord(1, StartReason.FULL, 0, 0.0, 0.005, False, 0.004, on_loop))
    forwards_s = [call.args[1:] for call in meter.batch_ended.call_args_list]
    assert forwards_s == [(0.005, 0.004), (0.0, 0.0)]
