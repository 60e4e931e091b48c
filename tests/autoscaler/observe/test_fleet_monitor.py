from dataclasses import replace

import numpy as np

from autoscaler.observe.fleet_monitor import FleetMonitor, FleetStatus
from autoscaler.settings import AutoscalerSettings
from tests.support.autoscaling.reporting_fleet import PER_REPLICA, START_S, Fleet

TEMPLATE = Fleet().report_of("r0")
#: In these seconds two of the replicas are silent.
SILENT = range(40, 60)


def reports(second):
    """Return the reports of five replicas, with queues and bottlenecks that change."""
    random = np.random.default_rng(second)
    return [
        replace(
            TEMPLATE,
            replica_id=f"r{number}",
            time_s=START_S + second + 0.1 * number,
            counted_s=second + 0.1 * number,
            offered_total=0.8 * PER_REPLICA * (second + 0.1 * number),
            queue_length=float(random.integers(0, 200)),
            bottleneck_code=float(random.integers(0, 4)),
        )
        for number in range(5)
        if number > 1 or second not in SILENT
    ]


def status(monitor, second):
    monitor.update(START_S + second, 5)
    found = monitor.status(START_S + second)
    assert isinstance(found, FleetStatus)
    return found


def test_a_monitor_that_is_asked_between_reports_says_the_same():
    often, seldom = (FleetMonitor(AutoscalerSettings()) for _ in range(2))
    for second in range(1, 90):
        for monitor in (often, seldom):
            monitor.observe(reports(second), START_S + second + 0.5)
            monitor.update(START_S + second + 0.5, 5)
        if second < 20:
            continue
        said = status(often, second + 0.5)
        assert status(often, second + 0.5) == said
        if second % 10 == 9:
            assert status(seldom, second + 0.5) == said
        assert status(often, second + 0.9).backlog == said.backlog
        # They count as silent ten seconds after their last report.
        assert (said.silent_replicas > 0) == (second in SILENT and second + 1 - SILENT.start >= 10)


def test_replicas_that_have_not_reported_for_an_hour_are_forgotten():
    monitor = FleetMonitor(AutoscalerSettings())
    monitor.observe(reports(1), START_S + 2)
    later = [
        replace(one, time_s=one.time_s + 3700, counted_s=one.counted_s + 3700)
        for one in reports(1)[:2]
    ]
    monitor.observe(later, START_S + 3702)
    monitor.update(START_S + 3702, 2)
    assert monitor.load.reports.keys() == {"r0", "r1"}


def test_queues_within_what_is_normal_do_not_make_up_for_longer_ones():
    monitor = FleetMonitor(AutoscalerSettings())
    for second in range(1, 20):
        queues = zip(reports(second), (0.0, 0.0, 100.0, 0.0, 10.0), strict=True)
        monitor.observe(
            [replace(one, queue_length=queue) for one, queue in queues], START_S + second + 0.5
        )
    assert status(monitor, 19.5).backlog == 100 - 2 * TEMPLATE.full_batch_size
