"""The policy of least power under MMPP arrivals."""

import numpy as np
import pytest

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.mmpp import Mmpp
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.mmpp import evaluate_mmpp
from policy.solvers import mmpp
from tests.support.profiles import GOOGLENET_P4

PROFILE = Profile("m", "d", np.array([2.0, 2.5, 3.0, 3.5]), np.array([20.0, 25.0, 30.0, 35.0]))
PROCESS = Mmpp((200.0, 700.0), (0.1, 0.05))
OBJECTIVE = ServiceLevelObjective(12, 99)


def control_limit(limit: int, max_wait_ms: float | None = None) -> BatchingPolicy:
    return BatchingPolicy.from_control_limit(limit, 4, max_wait_ms)


def least_power_w(process: Mmpp, late_share: float) -> float:
    """Return the least power of a grid of policies with at most this share of requests late."""
    powers = []
    for limit in (2, 3, 4):
        for wait_ms in np.arange(1.0, 10.1, 0.5):
            tried = evaluate_mmpp(PROFILE, control_limit(limit, wait_ms), process)
            if 1 - tried.service_level(12) <= late_share:
                powers.append(tried.mean_power_w)
    return min(powers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("process", "margin"),
    [(PROCESS, 0.0), (PROCESS, 0.4), (Mmpp((100.0, 850.0), (0.2, 0.05)), 0.3)],
)
@pytest.mark.parametrize("start", [None, control_limit(2, 1.0), control_limit(4, 9.0)])
def test_the_policy_takes_hardly_more_power_than_the_best_of_a_grid(process, margin, start):
    found = mmpp.solve(PROFILE, process, OBJECTIVE, start=start, margin=margin)
    assert found.meets_sla
    allowed = (1 - margin) * 0.01
    assert 1 - found.evaluation.service_level(12) <= allowed
    assert found.evaluation.mean_power_w <= 1.005 * least_power_w(process, allowed)


def test_a_start_in_time_that_cannot_be_bettered_is_kept():
    best = mmpp.solve(PROFILE, PROCESS, OBJECTIVE).policy
    assert mmpp.solve(PROFILE, PROCESS, OBJECTIVE, start=best).policy == best


def test_a_start_that_misses_the_percentile_gives_way():
    start = control_limit(4, 10.0)
    assert evaluate_mmpp(PROFILE, start, PROCESS).service_level(12) < 0.99
    found = mmpp.solve(PROFILE, PROCESS, OBJECTIVE, start=start)
    assert found.evaluation.service_level(12) >= 0.99


@pytest.mark.slow
def test_where_no_policy_keeps_the_percentile_power_is_saved_for_hardly_more_late_requests():
    """The late share may exceed that of starting at once by a twentieth of the allowed one."""
    process, objective = Mmpp((100.0, 850.0), (0.2, 0.05)), ServiceLevelObjective(8.0, 99)
    at_once = evaluate_mmpp(PROFILE, control_limit(1), process)
    late_at_once = 1 - at_once.service_level(8.0)
    assert late_at_once > 0.03
    found = mmpp.solve(PROFILE, process, objective)
    assert not found.meets_sla
    assert 1 - found.evaluation.service_level(8.0) <= late_at_once + 0.05 * 0.01 + 1e-9
    assert found.evaluation.mean_power_w < 0.95 * at_once.mean_power_w


def test_with_a_waiting_room_bursts_may_exceed_the_capacity_and_refused_requests_are_late():
    process = Mmpp((200.0, 2500.0), (0.5, 0.5))
    with pytest.raises(InfeasibleError):
        mmpp.solve(PROFILE, process, OBJECTIVE)
    lenient, strict = (ServiceLevelObjective(16, percentile) for percentile in (40, 90))
    found = mmpp.solve(PROFILE, process, lenient, waiting_room=10)
    assert 0.2 < found.evaluation.full_probability < 0.6
    assert found.meets_sla
    # Who is let into a room of 8 is answered within three batches: only the refused are late.
    other = mmpp.solve(PROFILE, process, strict, waiting_room=10)
    assert other.evaluation.service_level(16) > 0.99
    assert not other.meets_sla


@pytest.mark.slow
def test_a_low_limit_with_a_long_wait_is_found_from_a_high_one():
    """Bursts of 0.9 of the capacity: a limit of 22 needs waits of 3.7 ms, and 39 W."""
    capacity = GOOGLENET_P4.capacity_per_s
    process = Mmpp((0.3 * capacity, 0.9 * capacity), (0.5, 0.5))
    start = BatchingPolicy.from_control_limit(22, 32, 12.76)
    sla = ServiceLevelObjective(20, 99)
    found = mmpp.solve(GOOGLENET_P4, process, sla, start=start, margin=0.2, waiting_room=160)
    assert found.evaluation.service_level(20) >= 0.992
    assert found.evaluation.mean_power_w < 38.3
