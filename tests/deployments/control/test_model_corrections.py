"""When a correction of the model takes effect."""

import numpy as np
import pytest

from deployments.batcher.batch_record import BatchRecord
from deployments.batcher.requests import StartReason
from deployments.control.latency_refit import LatencyRefit
from deployments.control.model_corrections import REVISE_EVERY, ModelCorrections
from deployments.control.observations import Observations
from policy.profile import Profile

PROFILE = Profile("m", "d", np.array([2.0, 3.0]))


def seen(*arrival_counts: int, late: int = 0, failed: bool = False) -> Observations:
    """Return a tick with full batches that take twice what the profile says."""
    record = BatchRecord(2, StartReason.FULL, 0, 0.0, 0.006, None, failed)
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


def test_the_index_of_dispersion_in_force_follows_the_measured_one() -> None:
    corrections = ModelCorrections(PROFILE)
    assert not corrections.update_index_of_dispersion()
    for _ in range(10):
        corrections.observe(seen(0, 40), 0.01)
    assert corrections.index_of_dispersion == 1.0
    assert corrections.update_index_of_dispersion()
    assert corrections.index_of_dispersion == corrections.measured_index_of_dispersion > 10
    assert not corrections.update_index_of_dispersion()


def test_bursts_shorter_than_a_tick_are_seen() -> None:
    """Half a second at 150/s and half a second at 50/s make the same count in every second."""
    corrections = ModelCorrections(PROFILE)
    for _ in range(200):
        corrections.observe(seen(*5 * [15], *5 * [5]), 0.01)
    # Counts of 10 +- 5, without the variance of Poisson arrivals.
    assert corrections.measured_index_of_dispersion == pytest.approx(2.5, rel=0.01)


def test_too_many_late_answers_shorten_the_waits() -> None:
    corrections = ModelCorrections(PROFILE)
    corrections.observe(seen(late=10), 0.01)
    assert corrections.wait_factor == 1.0
    corrections.observe(seen(late=20), 0.01)
    assert corrections.wait_factor < 1.0
