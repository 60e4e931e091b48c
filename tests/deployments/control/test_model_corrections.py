from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.batcher.model_runner import BatchRecord
from deployments.control.latency_refit import LatencyRefit
from deployments.control.model_corrections import (
    PROXY_DELAY_TICKS,
    REST_AFTER_REFIT,
    REVISE_EVERY,
    ModelCorrections,
    WaitCorrection,
)
from deployments.control.observations import Observations
from policy.batcher.core import BatcherCore
from policy.batcher.requests import Request, StartReason
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.service_model import BatchingSettings, service_model
from policy.tables.solving import solve_table
from policy.try_delays import TryDelays
from tests.support.batching.batcher_core import Run
from tests.support.batching.event_loop_counts import event_loop_counts
from tests.support.batching.switching_arrivals import SwitchingArrivals
from tests.support.profiles import GOOGLENET_P4

PROFILE = Profile("m", "d", np.array([2.0, 3.0]))


def seen(duration_s=0.006, **batch):
    """Return a tick with full batches, which by default take twice what the profile says."""
    record = BatchRecord(2, StartReason.FULL, 0, 0.0, duration_s, **{"failed": False, **batch})
    return Observations(LatencyRefit.MIN_BATCHES * [record], 1000 * [0.01], 0)


def event_loop_second(cost_ms):
    """Return a tick in which 1000 requests, in batches of two, cost the loop `cost_ms` each."""
    event_loop = event_loop_counts(1000, 500, costs_s=(1e-3 * cost_ms, 0.0, 0.0))
    return Observations(event_loop=event_loop)


def refits(corrections: ModelCorrections, ticks: Iterable[Observations], **options):
    for tick, observed in enumerate(ticks, 1):
        corrections.observe(observed, 0.01)
        if corrections.refit_profile(**options):
            yield tick


@pytest.mark.parametrize(("failed", "refitted_at"), [(False, [2 * REVISE_EVERY]), (True, [])])
def test_the_second_check_refits_the_profile_and_failed_batches_do_not_count(failed, refitted_at):
    corrections = ModelCorrections(PROFILE)
    ticks = 3 * REVISE_EVERY * [seen(failed=failed)]
    assert list(refits(corrections, ticks)) == refitted_at
    assert corrections.profile_revisions == len(refitted_at)
    factor = 2.0 if refitted_at else 1.0
    np.testing.assert_allclose(corrections.profile.latency_ms, factor * PROFILE.latency_ms)


def test_batches_on_a_shared_cpu_are_refitted_to_their_cpu_time():
    """They took 6 ms because they waited for the event loop, which the model counts already."""
    shared = replace(seen(cpu_s=0.003), shares_cpu=True)
    assert not list(refits(ModelCorrections(PROFILE), 3 * REVISE_EVERY * [shared]))


def test_a_device_that_changes_all_the_time_is_refitted_ever_more_seldom():
    corrections = ModelCorrections(PROFILE)
    ticks = (seen((0.006, 0.003)[corrections.profile_revisions % 2]) for _ in range(500))
    gaps = np.diff(list(refits(corrections, ticks)))
    assert gaps.size >= 3
    assert (gaps >= REST_AFTER_REFIT * np.arange(1, gaps.size + 1)).all()


def test_the_event_loop_is_measured_put_in_force_and_followed():
    corrections = ModelCorrections(PROFILE)
    ticks = [event_loop_second(0.1 if tick < 40 else 0.2) for tick in range(90)]
    in_force = [
        corrections.profile.event_loop.ms_per_request(2.0) for _ in refits(corrections, ticks)
    ]
    # Measured once, and revised when the average of all that it has seen is off by a quarter.
    assert in_force == [pytest.approx(cost, rel=0.1) for cost in (0.1, 0.14, 0.18)]
    newest = corrections.newest_profile.event_loop
    assert newest.ms_per_request(2.0) > in_force[-1]


def test_a_table_that_is_being_solved_is_not_begun_anew_for_an_event_loop():
    """Eight replicas on two cores began anew again and again, and answered 23% in time."""
    corrections = ModelCorrections(PROFILE)
    ticks = [event_loop_second(0.1 * (1 + tick // 30)) for tick in range(120)]
    # The first time that the event loop is known.
    assert len(list(refits(corrections, ticks, solving=True))) == 1
    assert list(refits(corrections, 10 * [event_loop_second(0.4)]))


@pytest.mark.parametrize("shares_cpu", [True, False])
def test_the_newest_profile_varies_as_the_batches_do(shares_cpu):
    """Batches take 0.8 to 1.7 ms, by turns; the event loop takes 0.1 ms a request besides."""
    corrections = ModelCorrections(Profile("m", "d", np.array([1.0, 1.0])))
    durations_s = np.linspace(0.8e-3, 1.7e-3, LatencyRefit.MIN_VARYING)
    batches = [BatchRecord(2, StartReason.FULL, 0, 0.0, s, False) for s in durations_s]
    for batch in batches:
        tick = replace(event_loop_second(0.1), batches=[batch], shares_cpu=shares_cpu)
        list(refits(corrections, [tick]))
    newest = corrections.newest_profile
    mean_ms = newest.latency_quantiles.means_ms(newest.latency_ms)[1]
    p90_ms = newest.latency_ms[1] * newest.latency_quantiles.ratios[4, 1]
    assert mean_ms == pytest.approx(1.25, rel=0.05)
    assert p90_ms == pytest.approx(1.61, rel=0.05)
    assert newest.event_loop.shares_cpu == shares_cpu


def test_the_event_loop_is_measured_even_while_a_refit_of_the_latency_rests():
    corrections = ModelCorrections(PROFILE)
    ticks = [*2 * REVISE_EVERY * [seen()], *30 * [event_loop_second(0.1)]]
    first, second, *_ = [
        (tick, corrections.profile.event_loop is not None) for tick in refits(corrections, ticks)
    ]
    assert first == (2 * REVISE_EVERY, False)
    assert second[0] < 2 * REVISE_EVERY + REST_AFTER_REFIT
    assert second[1]


def test_the_proxy_delay_is_adopted_once_it_lasts_and_not_in_an_overload():
    corrections, sla = ModelCorrections(PROFILE), ServiceLevelObjective(100.0, 99.0)
    adopted = []
    for tick in range(60):
        # A spike, an overload, a delay that lasts, a small change, and none.
        delay_ms = (0.0, 20.0, 20.0, 22.0, 0.0)[tick // 12] if tick != 5 else 80.0
        refused = int(12 <= tick < 24)
        corrections.observe(replace(seen(), proxy_delay_ms=delay_ms, refused=refused), 0.01)
        if corrections.update_proxy_delay(sla):
            adopted.append((tick, corrections.proxy_delay_ms))
            assert corrections.after_proxy_delay(sla) == sla.after(corrections.proxy_delay_ms)
    assert adopted == [(33, 20.0), (53, 0.0)]
    # It leaves half of the SLA.
    for _ in range(PROXY_DELAY_TICKS):
        corrections.observe(replace(seen(), proxy_delay_ms=500.0), 0.01)
    assert corrections.update_proxy_delay(sla)
    assert corrections.after_proxy_delay(sla).response_time_ms == pytest.approx(50.0)


@given(
    st.lists(st.tuples(st.integers(1, 500), st.floats(0.001, 50.0)), max_size=5),
    st.floats(0.0, 40.0),
    st.floats(0.0, 60.0),
)
def test_the_delays_of_a_try_are_the_prior_until_they_are_measured(refusals, delay_ms, outward_ms):
    corrections, prior = ModelCorrections(PROFILE), TryDelays(0.25, 0.25, retries=3)
    assert corrections.delays(prior) == prior
    for count, each_ms in refusals:
        one = replace(seen(), refused_unread=count, refusal_s=1e-3 * count * each_ms)
        corrections.observe(one, 0.01)
    for _ in range(PROXY_DELAY_TICKS):
        one = replace(seen(), proxy_delay_ms=delay_ms, outward_delay_ms=outward_ms)
        corrections.observe(one, 0.01)
    corrections.update_proxy_delay(ServiceLevelObjective(20.0, 99.0))
    found, adopted_ms = corrections.delays(prior), corrections.proxy_delay_ms
    assert found.retries == 3
    assert found.round_trip_ms == pytest.approx(0.5 + adopted_ms, rel=0.05)
    assert found.request_delay_ms >= found.reply_delay_ms
    times_ms = [ms for _, ms in refusals] or [0.0]
    assert 0.95 * min(times_ms) <= found.retry_delay_ms <= 1.05 * max(times_ms)


def test_waits_settle_where_the_sla_just_holds():
    """Late requests are proportional to the factor; the correction must find 1% of them."""
    rng = np.random.default_rng(1)
    correction = WaitCorrection()
    assert correction.revise(20, 5, late_share_allowed=0.01) == 1.0, "so few say nothing"
    lates = []
    for _ in range(300):
        late = int(rng.binomial(300, 0.03 * correction.factor))
        correction.revise(300, late, late_share_allowed=0.01)
        lates.append(late)
    assert np.mean(lates[50:]) / 300 <= 0.012
    assert correction.factor > 0.05


@pytest.mark.slow
def test_bursts_close_to_the_capacity_keep_the_sla_with_shorter_waits():
    """Load 0.6, 50% up and down every 0.8 s; the policies are for steady arrivals."""
    sla, capacity_per_s = ServiceLevelObjective(20.0, 99.0), GOOGLENET_P4.capacity_per_s
    settings = BatchingSettings(objective="sla", serve_late=True)
    service = service_model(GOOGLENET_P4, sla, TryDelays(0.0, 0.0), settings)
    rates = [load * capacity_per_s for load in (0.5, 0.6, 0.7, 0.8, 0.9)]
    table = solve_table(service.profile, service.objective, rates)
    process = SwitchingArrivals((0.3 * capacity_per_s, 0.9 * capacity_per_s), (0.8, 0.8))

    def share_in_time(revise: Callable[[int, int, float], float]) -> float:
        core = BatcherCore(table, service.limits)
        run = Run(core, batch_s=lambda batch: 1e-3 * service.limits.batch_latency_ms(batch.size))
        run.coming += [Request(at_s, 1) for at_s in process.times_s(60, seed=2).tolist()]
        ticks, seen = 0, 0
        while run.step():
            if run.now_s > ticks + 1:
                new_s = np.array(run.responses_s[seen:])
                ticks, seen = ticks + 1, len(run.responses_s)
                late = int(np.count_nonzero(new_s > 0.02))
                core.wait_factor = revise(new_s.size, late, sla.late_share_allowed)
        return float(np.mean(np.array(run.responses_s[20_000:]) <= 0.02))

    assert share_in_time(lambda *_: 1.0) < 0.988
    assert share_in_time(WaitCorrection().revise) >= 0.99
