"""The fit of the event loop's costs to what it did."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.batcher.event_loop_meter import EventLoopCounts, IterationSums
from deployments.control.event_loop_fit import EventLoopFit
from policy.event_loop import EventLoopCosts
from tests.support.batching.event_loop_counts import event_loop_counts

REQUEST_MS, BATCH_MS, REFUSE_MS = 0.08, 0.2, 0.012


def second(
    requests: int,
    batches: int,
    refused: int = 0,
    *,
    factor: float = 1.0,
    slowdown: float = 1.0,
) -> EventLoopCounts:
    """Return a second at the costs above, times `factor`."""
    return event_loop_counts(
        requests,
        batches,
        refused,
        costs_s=[1e-3 * factor * ms for ms in (REQUEST_MS, BATCH_MS, REFUSE_MS)],
        slowdown=slowdown,
    )


def varied(seconds: int, seed: int = 0, **options: float) -> list[EventLoopCounts]:
    """Return seconds whose rates and batch sizes vary."""
    rng = np.random.default_rng(seed)
    counts = []
    for _ in range(seconds):
        requests = int(rng.integers(100, 4000))
        counts.append(second(requests, int(requests / rng.uniform(1, 20)), **options))
    return counts


def fitted(counts: list[EventLoopCounts], costs: EventLoopCosts | None = None) -> EventLoopFit:
    fit = EventLoopFit(costs)
    for one in counts:
        fit.observe(one, shares_cpu=False)
    return fit


def test_the_costs_of_requests_batches_and_refusals_are_told_apart() -> None:
    rng = np.random.default_rng(1)
    counts = [
        second(requests, int(requests / rng.uniform(1, 20)), int(requests * rng.uniform(0, 0.6)))
        for requests in rng.integers(100, 4000, size=60).tolist()
    ]
    fit = fitted(counts)
    assert fit.measured().request_ms == pytest.approx(REQUEST_MS, rel=0.05)
    assert fit.measured().batch_ms == pytest.approx(BATCH_MS, rel=0.05)
    assert fit.refuse_ms == pytest.approx(REFUSE_MS, rel=0.1)


def test_idle_seconds_change_nothing() -> None:
    counts = varied(20)
    idle = second(0, 0)
    plain = fitted(counts).measured()
    assert fitted([one for busy in counts for one in (busy, idle, idle)]).measured() == plain


@pytest.mark.parametrize(
    "belief", [None, EventLoopCosts(0.02, 0.05, False), EventLoopCosts(1.0, 0.0, False)]
)
def test_a_steady_load_fixes_the_cost_per_request(belief: EventLoopCosts | None) -> None:
    """Two requests per batch, every second: only their sum can be measured."""
    fit = fitted([second(1000, 500)] * 60, belief)
    expected_ms = REQUEST_MS + BATCH_MS / 2
    assert fit.measured().ms_per_request(2.0) == pytest.approx(expected_ms, rel=0.05)
    assert fit.mean_batch_size == pytest.approx(2.0)


def test_larger_batches_at_a_lower_cost_per_request_do_not_make_batches_dear() -> None:
    """Whole seconds told a regression that batches cost 0.2 ms and requests half of theirs.

    At a low rate, requests come one by one and caches are cold; at a high one, in larger batches.
    Within each second iterations of all sizes show what a request costs.
    """
    fit = EventLoopFit()
    rng = np.random.default_rng(3)
    for second_number in range(120):
        cold = second_number < 40
        request_s, batch_s = (1.4e-4, 2e-5) if cold else (1e-4, 2e-5)
        sums, requests, batches = IterationSums(), 0, 0
        for size in (1 + rng.poisson(0.2 if cold else 1.5, 800)).tolist():
            sums.add(size, 1, 0, request_s * size + batch_s)
            requests, batches = requests + size, batches + 1
        fit.observe(event_loop_counts(requests, batches, iterations=sums), shares_cpu=False)
    assert fit.measured().request_ms == pytest.approx(0.1, rel=0.1)
    assert fit.measured().batch_ms == pytest.approx(0.02, abs=0.015)


def test_noise_does_not_divide_what_cannot_be_told_apart() -> None:
    """Nearly every batch has one request; still, neither of the two costs vanishes."""
    rng = np.random.default_rng(7)
    fit = EventLoopFit()
    for _ in range(300):
        requests = int(rng.poisson(300))
        one = second(requests, requests - int(rng.integers(0, 40)), factor=rng.lognormal(0, 0.2))
        fit.observe(one, shares_cpu=False)
        costs = fit.measured()
        assert costs.batch_ms == pytest.approx(2 * costs.request_ms, rel=0.5)
    assert costs.ms_per_request(1.07) == pytest.approx(REQUEST_MS + BATCH_MS / 1.07, rel=0.1)


def test_few_refusals_have_no_cost_yet() -> None:
    assert fitted([second(1000, 500, 7)] * 5).refuse_ms is None


def test_unknown_costs_are_measured_as_soon_as_there_is_data() -> None:
    fit = EventLoopFit()
    revised = []
    for one in varied(10):
        fit.observe(one, shares_cpu=False)
        revised.append(fit.revise())
    first = next(number for number, event_loop in enumerate(revised, 1) if event_loop is not None)
    assert EventLoopFit.MIN_SECONDS <= first <= EventLoopFit.MIN_SECONDS + 1  # it forgets a little
    assert revised[first:] == (10 - first) * [None]
    assert fit.costs == revised[first - 1]
    assert fit.costs is not None
    assert fit.costs.request_ms == pytest.approx(fit.measured().request_ms, rel=0.05)


def test_few_requests_measure_nothing() -> None:
    fit = fitted([second(1, 1)] * 60)
    assert fit.revise() is None
    assert fit.costs is None


@pytest.mark.slow
def test_costs_that_rise_are_revised_once_and_those_that_fall_again() -> None:
    fit = EventLoopFit(EventLoopCosts(REQUEST_MS, BATCH_MS, False))
    counts = [*varied(100), *varied(600, factor=2.0), *varied(1200)]
    event_loops = []
    for number, one in enumerate(counts):
        fit.observe(one, shares_cpu=False)
        if number % 3 == 0 and fit.revise() is not None:
            event_loops.append((number, fit.costs))
    assert event_loops
    assert 100 < event_loops[0][0] < 300
    assert len(event_loops) <= 8
    assert fit.costs is not None
    assert fit.costs.ms_per_request(4.0) == pytest.approx(REQUEST_MS + BATCH_MS / 4, rel=0.3)


def test_noise_revises_nothing() -> None:
    rng = np.random.default_rng(5)
    fit = EventLoopFit(EventLoopCosts(REQUEST_MS, BATCH_MS, False))
    for one in varied(300):
        noisy = second(one.requests, one.batches, factor=float(rng.lognormal(0, 0.3)))
        fit.observe(noisy, shares_cpu=False)
        assert fit.revise() is None


@pytest.mark.parametrize(("slowdown", "shares_cores"), [(2.0, True), (1.4, False)])
def test_a_loop_that_waits_for_a_cpu_is_slower_and_shares_its_cores(
    slowdown: float, shares_cores: bool
) -> None:
    fit = fitted(varied(20, slowdown=slowdown))
    expected_ms = slowdown * (REQUEST_MS + BATCH_MS / 2)
    assert fit.measured().ms_per_request(2.0) == pytest.approx(expected_ms, rel=0.1)
    assert fit.slowdown == pytest.approx(slowdown)
    assert fit.shares_cores == shares_cores


def test_a_loop_with_little_work_does_not_share_its_cores() -> None:
    assert not fitted([second(10, 10, slowdown=5.0)] * 20).shares_cores


def test_a_neighbor_that_ended_is_forgotten_within_a_minute() -> None:
    fit = fitted([*varied(30, slowdown=3.0), *varied(60)])
    assert fit.slowdown == pytest.approx(1.0, abs=0.01)
    assert not fit.shares_cores


def test_costs_are_revised_at_once_if_the_device_comes_to_share_the_cpu() -> None:
    fit = fitted(varied(20), EventLoopCosts(REQUEST_MS, BATCH_MS, True))
    event_loop = fit.revise()
    assert event_loop is not None
    assert not event_loop.shares_cpu


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5000),
            st.integers(0, 5000),
            st.floats(0, 1),
            st.floats(0, 1),
            st.floats(0, 1),
        ),
        max_size=12,
    )
)
def test_any_counts_give_valid_costs(seconds: list[tuple[int, int, float, float, float]]) -> None:
    fit = EventLoopFit()
    for requests, batches, refused_share, cpu_s, busy_s in seconds:
        refused = int(refused_share * requests)
        fit.observe(
            event_loop_counts(
                requests,
                batches,
                refused,
                costs_s=(cpu_s, busy_s, cpu_s),
                busy_s=busy_s,
                cpu_s=cpu_s,
                cpu_wait_s=busy_s,
            ),
            shares_cpu=False,
        )
        fit.revise()
        assert fit.measured().request_ms >= 0  # EventLoopCosts has checked the rest
        assert 0 <= fit.utilization <= 1
        assert fit.slowdown >= 1
