"""Response times under MMPP(2) arrivals, against Poisson arrivals and against simulation."""

import numpy as np
import pytest

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.mmpp import Mmpp
from policy.response_time.evaluation import evaluate
from policy.response_time.mmpp import evaluate_mmpp
from tests.support.profiles import GOOGLENET_P4


def control_limit(limit: int, max_wait_ms: float | None) -> BatchingPolicy:
    return BatchingPolicy.from_control_limit(limit, 8, max_wait_ms)


@pytest.mark.parametrize(
    ("limit", "max_wait_ms", "rate_per_s"),
    [(1, None, 1800.0), (6, 5.0, 1200.0), (8, 2.0, 1500.0), (3, 9.0, 300.0)],
)
def test_equal_rates_give_the_response_times_of_poisson_arrivals(limit, max_wait_ms, rate_per_s):
    policy = control_limit(limit, max_wait_ms)
    process = Mmpp((rate_per_s, rate_per_s), (0.1, 0.02))
    found = evaluate_mmpp(GOOGLENET_P4, policy, process)
    expected = evaluate(GOOGLENET_P4, policy, rate_per_s)
    assert found.mean_batch_size == pytest.approx(expected.mean_batch_size, rel=1e-10)
    assert found.mean_power_w == pytest.approx(expected.mean_power_w, rel=1e-10)
    assert found.device_busy_fraction == pytest.approx(expected.device_busy_fraction, rel=1e-10)
    assert found.response_times.mean_ms == pytest.approx(expected.mean_response_ms, rel=2e-4)
    for time_ms in (3.0, 5.0, 8.0, 12.0):
        level = expected.service_level(time_ms)
        assert found.service_level(time_ms) == pytest.approx(level, abs=1e-4)


@pytest.mark.parametrize(
    ("limit", "max_wait_ms", "rates_per_s", "stays_s", "late", "errors"),
    # Shares later than 4, 6, 8 ms in simulations of 60 million requests, with standard errors.
    [
        (1, None, (600, 2000), (0.1, 0.1), (0.48639, 0.17475, 0.051357), (4.2e-4, 3.5e-4, 2.3e-4)),
        (6, 5.0, (600, 2000), (0.1, 0.1), (0.77404, 0.34529, 0.062821), (1.5e-4, 3.0e-4, 2.6e-4)),
        # Timers that run off while the device is busy.
        (8, 2.0, (200, 1900), (0.02, 0.02), (0.5679, 0.11217, 0.017473), (1.7e-4, 1.8e-4, 8e-5)),
        # Nothing arrives between rare bursts.
        (4, 8.0, (0, 1500), (0.2, 0.02), (0.4374, 0.077515, 0.042381), (1e-4, 5.9e-5, 4.2e-5)),
        # The rate switches within a batch.
        (
            5,
            4.0,
            (300, 1800),
            (0.004, 0.01),
            (0.59797, 0.094696, 0.0060047),
            (1.2e-4, 1.1e-4, 4e-5),
        ),
    ],
)
def test_the_late_shares_are_those_of_a_simulation(
    limit, max_wait_ms, rates_per_s, stays_s, late, errors
):
    found = evaluate_mmpp(
        GOOGLENET_P4, control_limit(limit, max_wait_ms), Mmpp(rates_per_s, stays_s)
    )
    # All requests are counted once: the distribution has as many as the chain serves.
    assert found.response_times.count == pytest.approx(found.mean_batch_size, rel=1e-4)
    for time_ms, share, error in zip((4.0, 6.0, 8.0), late, errors, strict=True):
        assert 1 - found.service_level(time_ms) == pytest.approx(share, abs=4 * error)
    time_ms = found.response_percentile_ms(99)
    assert found.service_level(time_ms) == pytest.approx(0.99, abs=1e-6)


@pytest.mark.parametrize(
    ("limit", "max_wait_ms", "rates_per_s", "stays_s", "waiting_room", "refused", "late"),
    # Share refused, and shares of the rest later than 4 and 6 ms, each with its standard error, in
    # simulations of 8 million requests. Bursts are beyond the capacity.
    [
        (
            *(1, None, (300, 3000), (0.05, 0.05), 16),
            (0.16365, 2.3e-4),
            ((0.84264, 5.7e-4), (0.73131, 6.6e-4)),
        ),
        (
            *(5, 4.0, (300, 3000), (0.05, 0.05), 16),
            (0.16542, 2.2e-4),
            ((0.92578, 1.6e-4), (0.7461, 6.1e-4)),
        ),
        (
            *(8, 2.0, (200, 3500), (0.02, 0.03), 8),
            (0.30481, 3.0e-4),
            ((0.87638, 4.6e-4), (0.33851, 4.9e-4)),
        ),
    ],
)
def test_a_full_waiting_room_refuses_as_in_a_simulation(
    limit, max_wait_ms, rates_per_s, stays_s, waiting_room, refused, late
):
    process = Mmpp(rates_per_s, stays_s)
    found = evaluate_mmpp(
        GOOGLENET_P4, control_limit(limit, max_wait_ms), process, waiting_room=waiting_room
    )
    assert found.response_times.count == pytest.approx(found.mean_batch_size, rel=1e-4)
    assert found.full_probability == pytest.approx(refused[0], abs=4 * refused[1])
    for time_ms, (share, error) in zip((4.0, 6.0), late, strict=True):
        assert 1 - found.service_level(time_ms) == pytest.approx(share, abs=4 * error)


def test_a_waiting_room_that_is_never_full_changes_nothing():
    process = Mmpp((600.0, 2000.0), (0.01, 0.01))
    policy = control_limit(6, 5.0)
    free = evaluate_mmpp(GOOGLENET_P4, policy, process)
    room = evaluate_mmpp(GOOGLENET_P4, policy, process, waiting_room=128)
    assert room.full_probability < 1e-9
    assert room.mean_power_w == pytest.approx(free.mean_power_w, rel=1e-8)
    assert room.service_level(6.0) == pytest.approx(free.service_level(6.0), abs=1e-8)


def test_what_cannot_be_evaluated_is_refused():
    process = Mmpp((600.0, 2000.0), (0.1, 0.1))
    with pytest.raises(InvalidInputError, match="needs a max wait"):
        evaluate_mmpp(GOOGLENET_P4, control_limit(4, None), process)
    with pytest.raises(InvalidInputError, match="starts all that wait"):
        evaluate_mmpp(GOOGLENET_P4, BatchingPolicy((0, 0, 2, 2), 4.0), process)
    with pytest.raises(InvalidInputError, match="the profile ends at 32"):
        evaluate_mmpp(GOOGLENET_P4, BatchingPolicy.from_control_limit(1, 40), process)
    with pytest.raises(InvalidInputError, match="must be a multiple of 8, the largest batch"):
        evaluate_mmpp(GOOGLENET_P4, control_limit(1, None), process, waiting_room=12)
    with pytest.raises(InfeasibleError, match="serves at most"):
        evaluate_mmpp(GOOGLENET_P4, control_limit(1, None), Mmpp((2000.0, 3000.0), (0.1, 0.1)))


def test_a_burst_beyond_the_capacity_is_refused_when_its_queue_is_too_long():
    two = BatchingPolicy.from_control_limit(1, 2)
    with pytest.raises(InfeasibleError, match="the queue grows too long"):
        evaluate_mmpp(GOOGLENET_P4, two, Mmpp((100.0, 3000.0), (2.0, 1.0)))


def test_the_mean_of_long_stays_is_that_of_two_poisson_processes():
    policy = control_limit(6, 5.0)
    rates = np.array([600.0, 1500.0])
    found = evaluate_mmpp(GOOGLENET_P4, policy, Mmpp((600.0, 1500.0), (100.0, 100.0)))
    apart = [evaluate(GOOGLENET_P4, policy, rate).service_level(7.0) for rate in rates]
    assert found.service_level(7.0) == pytest.approx(rates @ apart / rates.sum(), abs=2e-4)
