from dataclasses import replace

import pytest

from autoscaler.observe.replica_clocks import MAX_LAG_S, ReplicaClocks
from tests.support.autoscaling.reporting_fleet import Fleet

TEMPLATE = Fleet().report_of("r0")


def report(time_s, counted_s):
    return replace(TEMPLATE, time_s=time_s, counted_s=counted_s)


def test_a_report_from_the_future_was_recorded_now():
    assert ReplicaClocks().place(report(5000.0, 5.0), 1000.0) <= 1000.0


def test_a_clock_behind_is_corrected_after_some_reports():
    clocks = ReplicaClocks()
    placed = [clocks.place(report(996.0 + t, 5.0 + t), 1000.0 + t) for t in range(30)]
    assert placed[0] == 996.0
    assert 1029.0 - placed[-1] <= MAX_LAG_S


@pytest.mark.parametrize("counted_s", [0.0, 5.0])
def test_a_timely_report_keeps_its_time(counted_s):
    """Those after a first one that had counted for no time were once placed in the past."""
    clocks = ReplicaClocks()
    placed = [clocks.place(report(1000.0 + t, counted_s + t), 1001.0 + t) for t in range(3)]
    assert placed == [1000.0, 1001.0, 1002.0]
