from dataclasses import replace

import numpy as np
import pytest

from autoscaler.sizing.sla_rate_correction import MIN_CORRECTION, SlaRateCorrection
from policy.load_lateness import LoadLatenessCurve
from tests.support.autoscaling.reporting_fleet import CURVE, PER_REPLICA, PROFILE, SETTINGS, Fleet

ALLOWED, BATCH = 0.01, 32.0
# Half of the forecasts may be too low, so hardly any margin hides the model's errors.
BOLD = replace(SETTINGS, risk=0.5)


def run(correction, seconds, rate_per_s, late_share, seed=1, since_s=0, curve=CURVE, batch=BATCH):
    """Feed the correction with the counts of one replica; late requests come in batches."""
    rng = np.random.default_rng(seed)
    report = Fleet(1).report_of("r0")
    offered = late = 0.0
    before = replace(report, time_s=float(since_s))
    for second in range(since_s + 1, since_s + seconds + 1):
        offered += rng.poisson(rate_per_s)
        late += BATCH * rng.poisson(rate_per_s * late_share / BATCH)
        now = replace(
            report,
            time_s=float(second),
            offered_total=offered,
            answered_total=offered,
            late_total=late,
        )
        correction.count_between(before, now)
        before = now
        correction.revise(second, curve, ALLOWED, batch, 0, curve.sla_rate_per_s)


@pytest.mark.parametrize(("load", "seed"), [(0.5, 0), (0.9, 1), (0.97, 2)])
def test_a_perfect_model_stays_within_five_percent_of_1(load, seed):
    correction = SlaRateCorrection()
    run(correction, 3600, load * PER_REPLICA, CURVE.late_share(load * PER_REPLICA), seed)
    assert correction.correction == pytest.approx(1.0, abs=0.05)
    assert correction.error == pytest.approx(0.0, abs=0.003)


@pytest.mark.slow
def test_with_a_device_slower_than_its_profile_the_sla_is_restored():
    fleet = Fleet(12, settings=BOLD, batch_ms=lambda size: 1.2 * PROFILE.latency_ms[size - 1])
    fleet.run(300, 11.7 * PER_REPLICA)
    assert fleet.missed_share() > 0.01  # the uncorrected model breaks the SLA
    fleet.run(300, 11.7 * PER_REPLICA)
    fleet.missed_share()
    decision = fleet.run(600, 11.7 * PER_REPLICA)
    assert fleet.missed_share() <= 0.01
    assert MIN_CORRECTION <= decision.correction < 0.95
    assert decision.sla_rate_per_s == pytest.approx(decision.correction * PER_REPLICA)


def test_lateness_within_the_sla_is_no_evidence():
    """Batching may wait to save energy, as long as the SLA holds."""
    correction = SlaRateCorrection()
    run(correction, 1800, 0.6 * PER_REPLICA, 0.009)
    assert correction.correction == pytest.approx(1.0, abs=0.01)
    assert correction.error == pytest.approx(0.009, abs=0.003)


def test_a_request_that_another_replica_answers_in_time_is_not_lost():
    """Short bursts fill one replica or another; a second try finds room."""
    report = Fleet(1).report_of("r0")
    corrections = {}
    for retries in (0, 5):
        correction, before = SlaRateCorrection(), dict.fromkeys("abc", report)
        for second in range(1, 1200):
            for name in "abc":
                now = replace(
                    report,
                    time_s=float(second),
                    offered_total=80.0 * second,
                    refused_total=8.0 * second,
                    answered_total=72.0 * second,
                )
                correction.count_between(before[name], now)
                before[name] = now
            correction.revise(second, CURVE, ALLOWED, BATCH, retries, PER_REPLICA)
        corrections[retries] = correction.correction
    assert corrections[5] == 1.0
    assert corrections[0] < 0.9


def test_what_a_replica_refuses_by_time_does_not_explain_late_answers():
    """A device slower than its profile admits what it then answers late: no refusals in time."""
    levels = tuple(min(0.98, 1.09 / overload) for overload in LoadLatenessCurve.OVERLOADS)
    corrections = []
    for curve in (CURVE, replace(CURVE, overload_levels=levels)):
        correction = SlaRateCorrection()
        run(correction, 1200, 0.95 * PER_REPLICA, 0.05, curve=curve)
        corrections.append(correction.correction)
    assert corrections[0] == corrections[1]
    assert 0.85 < corrections[0] < 0.9


def test_a_faster_device_is_trusted_slowly():
    correction, corrections = SlaRateCorrection(), []
    for block in range(200):
        run(correction, 10, 0.97 * PER_REPLICA, 0.0, block, since_s=10 * block, batch=1.0)
        corrections.append(correction.correction)
    assert 1.01 < corrections[-1] < 1.2
    assert max(np.diff(corrections)) < 0.001


def test_the_correction_stops_at_its_minimum():
    correction = SlaRateCorrection()
    run(correction, 1800, 0.5 * PER_REPLICA, 0.5)
    assert correction.correction == pytest.approx(MIN_CORRECTION)


def test_an_overload_that_the_model_predicts_is_no_evidence():
    correction = SlaRateCorrection()
    run(correction, 1800, 1.3 * PER_REPLICA, 0.25)
    assert correction.correction == 1.0
    assert correction.error is None


def test_the_aftermath_of_an_overload_is_no_evidence():
    correction = SlaRateCorrection()
    run(correction, 20, 1.3 * PER_REPLICA, 0.3)
    run(correction, 10, 0.5 * PER_REPLICA, 0.3, since_s=20)
    run(correction, 300, 0.5 * PER_REPLICA, 0.0, since_s=30)
    assert correction.correction == 1.0


def test_past_trouble_is_forgotten_over_hours():
    correction = SlaRateCorrection()
    correction.load_state({"correction": 0.9})
    run(correction, 3600, 0.3 * PER_REPLICA, 0.0)
    assert 0.9 < correction.correction < 0.95
    correction.load_state({"correction": 0.9999})
    run(correction, 600, 0.3 * PER_REPLICA, 0.0)
    assert correction.correction == 1.0


@pytest.mark.parametrize(("late_share", "holds"), [(0.0, True), (0.04, False)])
def test_a_fleet_beyond_what_its_replicas_take_one_by_one_is_corrected_as_well(late_share, holds):
    """Sized by RAND, it ran where no block counted: a slower device broke the SLA for ever."""
    levels = tuple(min(0.99, 1.04 / one) for one in CURVE.OVERLOADS)
    curve = replace(CURVE, overload_levels=levels)
    rate_per_s = 1.06 * PER_REPLICA
    refused_share = 1 - curve.service_level(rate_per_s)
    correction, random = SlaRateCorrection(), np.random.default_rng(2)
    report = Fleet(1).report_of("r0")
    befores = [replace(report, replica_id=f"r{number}") for number in range(8)]
    for second in range(1, 1200):
        for number, before in enumerate(befores):
            attempts = int(random.poisson(rate_per_s))
            befores[number] = replace(
                before,
                time_s=float(second),
                offered_total=before.offered_total + attempts,
                refused_total=before.refused_total + random.binomial(attempts, refused_share),
                answered_total=before.answered_total + attempts,
                late_total=before.late_total + random.binomial(attempts, late_share),
            )
            if second > 1:
                correction.count_between(before, befores[number])
        correction.revise(second, curve, ALLOWED, BATCH, 5, 1.08 * PER_REPLICA)
    if holds:
        assert correction.correction == pytest.approx(1.0, abs=0.05)
    else:
        assert correction.correction < 0.99
