import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.batcher.event_loop_meter import EventLoopCounts
from deployments.control.event_loop_fit import REFUSAL_MS, EventLoopFit
from policy.event_loop import EventLoopCosts
from tests.support.batching.event_loop_counts import event_loop_counts

REQUEST_MS, BATCH_MS = 0.08, 0.2


def second(requests, batches, *, factor=1.0, slowdown=1.0):
    costs_s = [1e-3 * factor * ms for ms in (REQUEST_MS, BATCH_MS, REFUSAL_MS)]
    return event_loop_counts(requests, batches, costs_s=costs_s, slowdown=slowdown)


def varied(seconds, seed=0, **options):
    rng = np.random.default_rng(seed)
    counts = []
    for _ in range(seconds):
        requests = int(rng.integers(100, 4000))
        counts.append(second(requests, int(requests / rng.uniform(1, 20)), **options))
    return counts


def fitted(counts: list[EventLoopCounts], costs: EventLoopCosts | None = None):
    fit = EventLoopFit(costs)
    for one in counts:
        fit.observe(one, shares_cpu=False)
    return fit


def test_idle_seconds_change_nothing():
    counts = varied(20)
    idle = second(0, 0)
    plain = fitted(counts).measured()
    assert fitted([one for busy in counts for one in (busy, idle, idle)]).measured() == plain


@given(
    st.floats(0.01, 2.0), st.floats(1.0, 32.0), st.floats(0.0, 0.9), st.floats(0.0, 0.4) | st.none()
)
def test_the_cost_per_request_is_right_for_the_batches_of_late(
    request_ms, batch_size, refused_share, believed_ms
):
    """What cannot be measured is divided: a batch gets what it is believed to cost."""
    belief = None if believed_ms is None else EventLoopCosts(1.0, believed_ms, False)
    refused = int(3000 * refused_share)
    batches = int((3000 - refused) / batch_size)
    costs_s = [1e-3 * ms for ms in (request_ms, BATCH_MS, REFUSAL_MS)]
    fit = fitted([event_loop_counts(3000, batches, refused, costs_s=costs_s)] * 60, belief)
    expected_ms = request_ms + BATCH_MS / fit.mean_batch_size
    assert fit.measured().ms_per_request(fit.mean_batch_size) == pytest.approx(expected_ms)
    assert fit.measured().batch_ms <= (0.1 if believed_ms is None else believed_ms)


def test_unknown_costs_are_measured_as_soon_as_there_is_data():
    assert fitted([second(1, 1)] * 60).revise() is None
    fit = EventLoopFit()
    revised = []
    for one in [second(1000, 500)] * 10:
        fit.observe(one, shares_cpu=False)
        revised.append(fit.revise())
    first = next(number for number, event_loop in enumerate(revised, 1) if event_loop is not None)
    assert EventLoopFit.MIN_SECONDS <= first <= EventLoopFit.MIN_SECONDS + 1  # it forgets a little
    assert revised[first:] == (10 - first) * [None]
    assert fit.costs == revised[first - 1]
    assert fit.costs.request_ms == pytest.approx(fit.measured().request_ms, rel=0.05)


def test_noise_revises_nothing():
    rng = np.random.default_rng(5)
    fit = EventLoopFit(EventLoopCosts(REQUEST_MS, BATCH_MS, False))
    for one in varied(300):
        noisy = second(one.requests, one.batches, factor=float(rng.lognormal(0, 0.3)))
        fit.observe(noisy, shares_cpu=False)
        assert fit.revise() is None


@pytest.mark.parametrize(("slowdown", "shares_cores"), [(2.0, True), (1.4, False)])
def test_a_loop_that_waits_for_a_cpu_is_slower_and_shares_its_cores(slowdown, shares_cores):
    fit = fitted([second(2000, 1000, slowdown=slowdown)] * 20)
    expected_ms = slowdown * (REQUEST_MS + BATCH_MS / 2)
    assert fit.measured().ms_per_request(2.0) == pytest.approx(expected_ms, rel=0.1)
    assert fit.slowdown == pytest.approx(slowdown)
    assert fit.shares_cores == shares_cores


def test_little_work_and_a_neighbor_that_ended_a_minute_ago_share_no_cores():
    assert not fitted([second(10, 10, slowdown=5.0)] * 20).shares_cores
    fit = fitted([*varied(30, slowdown=3.0), *varied(60)])
    assert fit.slowdown == pytest.approx(1.0, abs=0.01)
    assert not fit.shares_cores


def test_costs_are_revised_at_once_if_the_device_comes_to_share_the_cpu():
    fit = fitted(varied(20), EventLoopCosts(REQUEST_MS, BATCH_MS, True))
    event_loop = fit.revise()
    assert not event_loop.shares_cpu


counts = st.integers(0, 5000)
shares = st.floats(0, 1)


@pytest.mark.slow
@given(st.lists(st.tuples(counts, counts, shares, shares, shares), max_size=12))
def test_any_counts_give_valid_costs(seconds):
    fit = EventLoopFit()
    for requests, batches, refused_share, cpu_s, busy_s in seconds:
        costs_s = (cpu_s, busy_s, cpu_s)
        times_s = {"busy_s": busy_s, "cpu_s": cpu_s, "cpu_wait_s": busy_s}
        refused = int(refused_share * requests)
        counted = event_loop_counts(requests, batches, refused, costs_s=costs_s, **times_s)
        fit.observe(counted, shares_cpu=False)
        fit.revise()
        assert fit.measured().request_ms >= 0  # EventLoopCosts has checked the rest
        assert 0 <= fit.utilization <= 1
        assert fit.slowdown >= 1
