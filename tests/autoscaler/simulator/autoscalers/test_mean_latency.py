import numpy as np
import pytest

from autoscaler.simulator.autoscalers.mean_latency import (
    MeanLatencySizing,
    highest_rate_per_s,
    mean_time_ms,
)
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from tests.support.fleet_views import fleet_sizes

SINGLE = Profile("model", "device", np.array([10.0]))
BATCHES = Profile("model", "device", np.linspace(10.0, 20.0, 8))


def test_without_batches_it_is_the_mean_of_a_finite_markovian_queue() -> None:
    """M/M/1/K with a load of 0.5: the mean number in it over the accepted rate."""
    shares = 0.5 ** np.arange(12)
    shares /= shares.sum()
    expected_ms = 1e3 * (np.arange(12) @ shares) / (50 * (1 - shares[-1]))
    assert mean_time_ms(SINGLE, 50.0) == pytest.approx(expected_ms)


def test_a_request_alone_takes_a_batch_of_one() -> None:
    assert mean_time_ms(BATCHES, 1e-6) == pytest.approx(10.0)


@pytest.mark.parametrize("target_ms", [12.0, 20.0, 60.0])
def test_the_highest_rate_just_meets_its_target(target_ms: float) -> None:
    rate_per_s = highest_rate_per_s(BATCHES, target_ms)
    assert mean_time_ms(BATCHES, rate_per_s) == pytest.approx(target_ms, rel=1e-6)


def test_targets_that_nothing_meets_and_that_everything_meets_end_at_the_limits() -> None:
    assert highest_rate_per_s(BATCHES, 5.0) == pytest.approx(0.01 * BATCHES.capacity_per_s)
    assert highest_rate_per_s(BATCHES, 1e6) == pytest.approx(0.99 * BATCHES.capacity_per_s)


def test_it_is_sized_for_the_mean_of_the_last_minute_once_a_minute() -> None:
    sizing = MeanLatencySizing(BATCHES, ServiceLevelObjective(100, 99), 0.5)
    rate_per_s = sizing.replica_rate_per_s
    sizes = fleet_sizes(sizing, [2.5 * rate_per_s] * 60 + [4.5 * rate_per_s] * 120)
    assert set(sizes[:60]) == {3}
    assert sizes[60] == 3
    assert sizes[120] == 5


def test_a_target_above_0_is_required() -> None:
    with pytest.raises(InvalidInputError):
        MeanLatencySizing(BATCHES, ServiceLevelObjective(100, 99), 0.0)
