"""When a correction of the model takes effect."""

import numpy as np
import pytest

from deployments.batcher.asyncio_batcher import BatchRecord
from deployments.batcher.requests import StartReason
from deployments.control.latency_refit import LatencyRefit
from deployments.control.model_corrections import REVISE_EVERY, ModelCorrections
from deployments.control.observations import Observations
from policy.profile import Profile

PROFILE = Profile("m", "d", np.array([2.0, 3.0]))


def seen(offered_rows: int = 0, *, late: int = 0, failed: bool = False) -> Observations:
    """Return a tick with full batches that take twice what the profile says."""
    record = BatchRecord(2, StartReason.FULL, 0, 0.0, 0.006, None, failed)
    return Observations(LatencyRefit.MIN_BATCHES * [record], 1000 * [0.01], late, offered_rows)


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
    for rows in 10 * [0, 40]:
        corrections.observe(seen(rows), 0.01)
    assert corrections.index_of_dispersion == 1.0
    assert corrections.update_index_of_dispersion()
    assert corrections.index_of_dispersion == corrections.measured_index_of_dispersion > 10
    assert not corrections.update_index_of_dispersion()


def test_too_many_late_answers_shorten_the_waits() -> None:
    corrections = ModelCorrections(PROFILE)
    corrections.observe(seen(late=10), 0.01)
    assert corrections.wait_factor == 1.0
    corrections.observe(seen(late=20), 0.01)
    assert corrections.wait_factor < 1.0
