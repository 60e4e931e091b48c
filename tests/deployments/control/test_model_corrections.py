"""When a correction of the model takes effect."""

from dataclasses import replace

import numpy as np
import pytest

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
from policy.batcher.requests import StartReason
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from tests.support.batching.event_loop_counts import event_loop_counts

PROFILE = Profile("m", "d", np.array([2.0, 3.0]))


def seen(
    *arrival_counts: int, late: int = 0, failed: bool = False, duration_s: float = 0.006
) -> Observations:
    """Return a tick with full batches, which by default take twice what the profile says."""
    record = BatchRecord(2, StartReason.FULL, 0, 0.0, duration_s, None, failed)
    batches = LatencyRefit.MIN_BATCHES * [record]
    return Observations(batches, 1000 * [0.01], late, list(arrival_counts))


@pytest.mark.parametrize(("failed", "revisions"), [(False, [2 * REVISE_EVERY]), (True, [])])
def test_the_second_check_refits_the_profile_and_failed_batches_do_not_count(
    failed: bool, revisions: list[int]
) -> None:
    corrections = ModelCorrections(PROFILE)
    refitted_at = []
    for tick in range(1, 3 * REVISE_EVERY + 1):
        corrections.observe(seen(failed=failed), 0.01)
        if corrections.refit_profile():
            refitted_at.append(tick)
    assert refitted_at == revisions
    assert corrections.profile_revisions == len(revisions)
    factor = 2.0 if revisions else 1.0
    np.testing.assert_allclose(corrections.profile.latency_ms, factor * PROFILE.latency_ms)


def test_batches_on_a_shared_cpu_are_refitted_to_their_cpu_time() -> None:
    """They took 6 ms because they waited for the event loop, which the model counts already."""
    corrections = ModelCorrections(PROFILE)
    record = replace(seen().batches[0], duration_s=0.006, cpu_s=0.003)
    batches = LatencyRefit.MIN_BATCHES * [record]
    for _ in range(3 * REVISE_EVERY):
        corrections.observe(Observations(batches, [], 0, [], None, shares_cpu=True), 0.01)
        assert not corrections.refit_profile()


def test_a_device_that_changes_all_the_time_is_refitted_ever_more_seldom() -> None:
    corrections = ModelCorrections(PROFILE)
    refitted_at = []
    for tick in range(1, 500):
        slow = corrections.profile_revisions % 2 == 0
        corrections.observe(seen(duration_s=0.006 if slow else 0.003), 0.01)
        if corrections.refit_profile():
            refitted_at.append(tick)
    gaps = np.diff(refitted_at)
    assert gaps.size >= 3
    assert (gaps >= REST_AFTER_REFIT * np.arange(1, gaps.size + 1)).all()


def event_loop_seconds(cost_ms: float) -> Observations:
    """Return a tick in which 1000 requests, in batches of two, cost the loop `cost_ms` each."""
    event_loop = event_loop_counts(1000, 500, costs_s=(1e-3 * cost_ms, 0.0, 0.0))
    return Observations([], [], 0, [], event_loop)


def test_the_event_loop_is_measured_put_in_force_and_followed() -> None:
    corrections = ModelCorrections(PROFILE)
    in_force = []
    for tick in range(90):
        corrections.observe(event_loop_seconds(0.1 if tick < 40 else 0.2), 0.01)
        if corrections.refit_profile():
            assert corrections.profile.event_loop is not None
            in_force.append(corrections.profile.event_loop.ms_per_request(2.0))
    # Measured once, and revised when the average of all that it has seen is off by a quarter.
    assert in_force == [pytest.approx(cost, rel=0.1) for cost in (0.1, 0.14, 0.18)]
    newest = corrections.newest_profile.event_loop
    assert newest is not None
    assert newest.ms_per_request(2.0) > in_force[-1]


def test_a_table_that_is_being_solved_is_not_begun_anew_for_an_event_loop() -> None:
    """Eight replicas on two cores began anew again and again, and answered 23% in time."""
    corrections = ModelCorrections(PROFILE)
    refits = 0
    for tick in range(120):
        cost_s = 1e-4 * (1 + tick // 30)
        event_loop = event_loop_counts(1000, 500, costs_s=(cost_s, 0.0, 0.0))
        corrections.observe(Observations([], [], 0, [], event_loop), 0.01)
        refits += corrections.refit_profile(solving=True)
    assert refits == 1  # the first time that the event loop is known
    while not corrections.refit_profile():
        corrections.observe(event_loop_seconds(0.4), 0.01)


@pytest.mark.parametrize("shares_cpu", [True, False])
def test_the_newest_profile_varies_as_the_batches_do(shares_cpu: bool) -> None:
    """Batches take 0.8 to 1.7 ms, by turns; the event loop takes 0.1 ms a request besides."""
    corrections = ModelCorrections(Profile("m", "d", np.array([1.0, 1.0])))
    durations_s = np.linspace(0.8e-3, 1.7e-3, LatencyRefit.MIN_VARYING)
    batches = [BatchRecord(2, StartReason.FULL, 0, 0.0, s, None, False) for s in durations_s]
    for batch in batches:
        tick = replace(event_loop_seconds(0.1), batches=[batch], shares_cpu=shares_cpu)
        corrections.observe(tick, 0.01)
        corrections.refit_profile()
    newest = corrections.newest_profile
    assert newest.latency_quantiles is not None
    mean_ms = newest.latency_quantiles.means_ms(newest.latency_ms)[1]
    p90_ms = newest.latency_ms[1] * newest.latency_quantiles.ratios[4, 1]
    assert mean_ms == pytest.approx(1.25, rel=0.05)
    assert p90_ms == pytest.approx(1.61, rel=0.05)
    assert newest.event_loop is not None
    assert newest.event_loop.shares_cpu == shares_cpu


def test_the_event_loop_is_measured_even_while_a_refit_of_the_latency_rests() -> None:
    corrections = ModelCorrections(PROFILE)
    revised_at = []
    for tick in range(1, 2 * REVISE_EVERY + 31):
        corrections.observe(seen() if tick <= 2 * REVISE_EVERY else event_loop_seconds(0.1), 0.01)
        if corrections.refit_profile():
            revised_at.append((tick, corrections.profile.event_loop is not None))
    assert revised_at[0] == (2 * REVISE_EVERY, False)
    assert revised_at[1][0] < 2 * REVISE_EVERY + REST_AFTER_REFIT
    assert revised_at[1][1]


def test_the_index_of_dispersion_in_force_follows_the_measured_one() -> None:
    corrections = ModelCorrections(PROFILE)
    assert not corrections.update_index_of_dispersion()
    for _ in range(10):
        corrections.observe(seen(0, 40), 0.01)
    assert corrections.index_of_dispersion == 1.0
    assert corrections.update_index_of_dispersion()
    assert corrections.index_of_dispersion == corrections.measured_index_of_dispersion > 10
    assert not corrections.update_index_of_dispersion()


def test_the_proxy_delay_is_adopted_once_it_lasts_and_not_in_an_overload() -> None:
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


def test_the_proxy_delay_leaves_half_of_the_sla() -> None:
    corrections, sla = ModelCorrections(PROFILE), ServiceLevelObjective(100.0, 99.0)
    for _ in range(PROXY_DELAY_TICKS):
        corrections.observe(replace(seen(), proxy_delay_ms=500.0), 0.01)
    assert corrections.update_proxy_delay(sla)
    assert corrections.after_proxy_delay(sla).response_time_ms == pytest.approx(50.0)


def test_waits_settle_where_the_sla_just_holds() -> None:
    """Late requests are proportional to the factor; the correction must find 1% of them."""
    rng = np.random.default_rng(1)
    correction = WaitCorrection()
    lates = []
    for _ in range(300):
        late = int(rng.binomial(300, 0.03 * correction.factor))
        correction.revise(300, late, late_share_allowed=0.01)
        lates.append(late)
    assert np.mean(lates[50:]) / 300 <= 0.012
    assert correction.factor > 0.05


def test_a_few_requests_change_nothing() -> None:
    correction = WaitCorrection()
    assert correction.revise(requests=20, late=5, late_share_allowed=0.01) == 1.0
