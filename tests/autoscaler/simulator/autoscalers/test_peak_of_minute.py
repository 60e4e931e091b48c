import pytest

from autoscaler.simulator.autoscalers.peak_of_minute import PeakOfMinute
from policy.errors import InvalidInputError
from tests.support.fleet_views import fleet_sizes


def test_sizes_for_the_busiest_second_of_the_last_sixty() -> None:
    sizes = fleet_sizes(PeakOfMinute(100), [100.0, 301.0] + 70 * [100.0])
    assert sizes[0] == 1
    assert sizes[1:61] == 60 * [4]
    assert set(sizes[61:]) == {1}


def test_multiplies_by_the_headroom() -> None:
    assert fleet_sizes(PeakOfMinute(100, headroom=1.2), [500.0]) == [6]


def test_keeps_one_replica_without_load() -> None:
    assert fleet_sizes(PeakOfMinute(100), [0.0]) == [1]


def test_rejects_a_rate_of_zero() -> None:
    with pytest.raises(InvalidInputError):
        PeakOfMinute(0)
