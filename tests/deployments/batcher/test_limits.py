"""The limits that keep an SLA on a device."""

import numpy as np
import pytest

from deployments.batcher.limits import ADMISSION_SHARE, MAX_WAITING_ROOM, limits_for
from policy.objective import ServiceLevelObjective
from policy.profile import Profile


def profile(full_batch_ms: float) -> Profile:
    return Profile("m", "d", np.linspace(min(10, full_batch_ms), full_batch_ms, 32))


@pytest.mark.parametrize(
    ("response_time_ms", "full_batch_ms", "rows"),
    [(500, 216, 32), (1000, 216, 96), (10, 216, 32), (1000, 1, MAX_WAITING_ROOM)],
)
def test_the_waiting_room_holds_the_rows_that_can_be_served_in_time(
    response_time_ms: float, full_batch_ms: float, rows: int
) -> None:
    limits = limits_for(profile(full_batch_ms), ServiceLevelObjective(response_time_ms, 99))
    assert limits.waiting_room == rows
    assert limits.max_age_ms == max(0, response_time_ms - full_batch_ms)
    assert limits.admit_within_ms == ADMISSION_SHARE * response_time_ms


def test_an_explicit_waiting_room_is_a_hard_limit() -> None:
    limits = limits_for(profile(216), ServiceLevelObjective(500, 99), waiting_room=7)
    assert (limits.waiting_room, limits.admit_within_ms) == (7, 0.0)
