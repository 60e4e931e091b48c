import numpy as np
import pytest

from autoscaler.simulator.autoscalers.fixed import FixedFleet, fixed_at_peak
from policy.errors import InvalidInputError
from tests.support.fleet_views import view


def test_a_fleet_fixed_at_peak_covers_the_busiest_second_and_no_more() -> None:
    trace = np.array([10.0, 250.0, 40.0])
    assert fixed_at_peak(trace, 100).count == 3
    assert fixed_at_peak(trace, 125).count == 2
    assert fixed_at_peak(trace, 100, window_s=3).count == 1
    assert fixed_at_peak(trace, 100).replicas(view(7.0)) == 3


def test_a_fixed_fleet_has_at_least_one_replica() -> None:
    with pytest.raises(InvalidInputError):
        FixedFleet(0)
