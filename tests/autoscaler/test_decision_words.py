"""Each remark appears exactly when there is something to say, and names the numbers."""

from dataclasses import replace

import pytest

from autoscaler.decision import FleetState
from autoscaler.decision_words import (
    bottleneck_remark,
    correction_remark,
    origin_in_words,
    report_remark,
    stuck_remark,
)
from autoscaler.fleet_status import SLOW_INTERVAL_S, FleetStatus
from autoscaler.forecasting.demand import DemandForecast
from autoscaler.reports import BOTTLENECKS
from autoscaler.settings import AutoscalerSettings
from autoscaler.sizing.sla_rate_correction import MIN_CORRECTION

STATUS = FleetStatus(
    replicas=4,
    silent_replicas=0,
    carrying_replicas=4,
    report_interval_s=1.0,
    offered_per_s=90.0,
    forecast=DemandForecast(100.0, 120.0, "last", 1.2),
    backlog=0.0,
    demand_per_s=120.0,
)


def test_a_fleet_without_trouble_gets_no_remark() -> None:
    remarks = (
        correction_remark(1.0),
        bottleneck_remark(None),
        report_remark(STATUS),
        stuck_remark(0, FleetState(4, 1, 10, 4)),
    )
    assert remarks == ("", "", "", "")


def test_a_demand_that_is_measured_has_its_own_reason() -> None:
    urgent = replace(STATUS, urgency="queues grow")
    origin = origin_in_words(urgent, 0.05, AutoscalerSettings())
    assert origin == "ahead of the forecast, because queues grow"


def test_only_a_risk_that_is_not_set_is_adapted() -> None:
    given = origin_in_words(STATUS, 0.05, AutoscalerSettings(risk=0.05))
    assert given == "by last at a risk of 0.05"
    adapted = origin_in_words(STATUS, 0.05, AutoscalerSettings(compliant_minutes=99))
    assert adapted == f"{given} (adapted so that 99% of the minutes comply)"


def test_a_correction_is_remarked_upon_at_its_minimum_only() -> None:
    assert correction_remark(MIN_CORRECTION + 1e-6) == ""
    assert f"{MIN_CORRECTION:g}" in correction_remark(MIN_CORRECTION)


@pytest.mark.parametrize("bottleneck", BOTTLENECKS)
def test_every_bottleneck_is_named(bottleneck: str) -> None:
    assert bottleneck_remark(bottleneck).startswith(f"; bottleneck: {bottleneck}")
    helps = "does not help" not in bottleneck_remark(bottleneck)
    assert helps == (bottleneck != "neither")


@pytest.mark.parametrize("silent", [0, 3])
@pytest.mark.parametrize("interval_s", [1.0, SLOW_INTERVAL_S, 10.0])
def test_missing_and_slow_reports_are_said_together(silent: int, interval_s: float) -> None:
    remark = report_remark(replace(STATUS, silent_replicas=silent, report_interval_s=interval_s))
    assert ("without reporting: 3" in remark) == (silent == 3)
    assert (f"every {interval_s:.0f} s" in remark) == (interval_s >= SLOW_INTERVAL_S)


def test_replicas_that_do_not_start_are_counted() -> None:
    remark = stuck_remark(2, FleetState(6, 1, 10, ready_replicas=4))
    assert remark.startswith("; only 4 of 6 serve: 2 do not start")
