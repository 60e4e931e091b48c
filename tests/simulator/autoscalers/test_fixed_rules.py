"""Peak of the last minute, and a static fleet."""

import numpy as np
import pytest

from policy.errors import InvalidInputError
from simulator.autoscalers.fixed import FixedFleet, fixed_at_peak
from simulator.autoscalers.peak_of_minute import PeakOfMinute
from tests.support.fleet_views import follow, view


def test_the_busiest_second_of_the_last_sixty_counts() -> None:
    sizes = follow(PeakOfMinute(100), [100.0, 301.0] + 70 * [100.0])
    assert sizes[0] == 1
    assert sizes[1:61] == 60 * [4]
    assert set(sizes[61:]) == {1}


def test_headroom_multiplies_and_nothing_offered_keeps_one() -> None:
    assert follow(PeakOfMinute(100, headroom=1.2), [500.0]) == [6]
    assert follow(PeakOfMinute(100), [0.0]) == [1]
    with pytest.raises(InvalidInputError):
        PeakOfMinute(0)


def test_static_at_peak_covers_the_busiest_second_and_no_more() -> None:
    trace = np.array([10.0, 250.0, 40.0])
    assert fixed_at_peak(trace, 100).count == 3
    assert fixed_at_peak(trace, 125).count == 2
    assert fixed_at_peak(trace, 100, window_s=3).count == 1
    assert fixed_at_peak(trace, 100).replicas(view(7.0)) == 3
    with pytest.raises(InvalidInputError):
        FixedFleet(0)
