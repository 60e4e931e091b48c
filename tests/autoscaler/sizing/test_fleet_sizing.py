from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.reports import bottleneck_to_floats
from autoscaler.sizing.fleet_sizing import FleetSizing, Requirement, median_replica
from policy.load_lateness import LoadLatenessCurve
from policy.tables.power import LOADS, MULTIPLES, PowerTable
from policy.try_delays import TryDelays
from tests.support.autoscaling.reporting_fleet import CURVE, PER_REPLICA, Fleet

REPORT = Fleet(1).report_of("r0")
WITHOUT_CURVE = replace(REPORT, sla_rate_per_s=0.0, late_shares=())
OUT_OF_REACH = replace(REPORT, sla_rate_per_s=0.0, late_shares=len(CURVE.late_shares) * (1.0,))
# A full batch of 32 takes 216 ms: 148 requests/s.
BY_CAPACITY = 0.8 * 32e3 / REPORT.full_batch_ms


def sizing(*reports, correction=1.0, low=1, high=1000):
    return FleetSizing(median_replica(reports), correction, low, high, TryDelays(retries=5))


@given(st.floats(0.0, 500 * PER_REPLICA), st.floats(0.7, 1.5))
def test_no_smaller_number_meets_the_sla(demand, correction):
    fleet = sizing(REPORT, correction=correction)
    requirement = fleet.required(demand)
    n = requirement.replicas
    assert (requirement.remark, requirement.is_limited) == ("", False)
    assert fleet.service_level(demand, n) >= 0.99 - 1e-6
    if n > 1:
        # At the SLA rate itself the level is a little above 99%, within the curve's resolution.
        assert fleet.service_level(demand, n - 1) < CURVE.service_level(PER_REPLICA) < 0.9901


def test_without_a_curve_a_share_of_the_capacity_is_used():
    fleet = sizing(WITHOUT_CURVE)
    assert fleet.required(3.9 * BY_CAPACITY) == Requirement(4)
    assert fleet.required(4.1 * BY_CAPACITY) == Requirement(5)
    assert fleet.sla_rate_per_s() is None


def test_the_median_replica_counts():
    slow = replace(REPORT, sla_rate_per_s=PER_REPLICA / 2)
    assert sizing(slow, REPORT, REPORT).sla_rate_per_s() == PER_REPLICA
    assert sizing(slow, slow, REPORT).sla_rate_per_s() == PER_REPLICA / 2
    # Of two, the slower one counts: it is unknown which of them is the outlier.
    assert sizing(slow, REPORT).sla_rate_per_s() == PER_REPLICA / 2


def test_of_two_slas_the_one_of_most_replicas_counts():
    strict = replace(REPORT, sla_percentile=99.9, sla_rate_per_s=0.8 * PER_REPLICA)
    assert sizing(strict, REPORT, strict).required(8 * PER_REPLICA).replicas == 10
    assert sizing(strict, REPORT, REPORT).required(8 * PER_REPLICA).replicas == 8


def test_an_sla_out_of_reach_is_reported_and_the_load_still_carried():
    requirement = sizing(OUT_OF_REACH).required(3.5 * BY_CAPACITY)
    assert requirement.replicas == 4
    assert "is out of reach with any number of replicas" in requirement.remark


def test_the_bounds_are_kept():
    limited = Requirement(3, "; more than 3 replicas would be needed", is_limited=True)
    assert sizing(REPORT, low=3).required(0.0) == Requirement(3)
    assert sizing(REPORT, high=3).required(5 * PER_REPLICA) == limited
    assert sizing(WITHOUT_CURVE, high=3).required(5 * PER_REPLICA) == limited


def test_an_event_loop_serves_no_more_in_a_fleet_than_alone():
    refusing = replace(
        REPORT, overload_levels=tuple(min(0.99, 1.06 / m) for m in LoadLatenessCurve.OVERLOADS)
    )
    assert sizing(refusing).fleet_rate_per_s(4) > 1.01 * 4 * PER_REPLICA
    for bottleneck in ("event_loop", "neither"):
        limited = replace(refusing, **bottleneck_to_floats(bottleneck))
        assert sizing(limited).fleet_rate_per_s(4) == pytest.approx(4 * PER_REPLICA)


@given(st.lists(st.floats(0.0, 40.0), min_size=2, max_size=2), st.floats(1.0, 30.0))
def test_the_longer_a_try_is_measured_to_take_the_more_replicas_are_required(refusals_ms, load):
    refusing = replace(
        REPORT, overload_levels=tuple(min(0.99, 1.06 / m) for m in LoadLatenessCurve.OVERLOADS)
    )
    reports = [replace(refusing, retry_delay_ms=ms) for ms in sorted(refusals_ms)]
    measured = [median_replica([one]).delays for one in reports]
    assert [delays.retry_delay_ms for delays in measured] == sorted(refusals_ms)
    quick, slow = (
        FleetSizing(median_replica([one]), 1.0, 1, 1000, replace(one.delays, retries=5))
        for one in reports
    )
    assert quick.required(load * PER_REPLICA).replicas <= slow.required(load * PER_REPLICA).replicas


def test_rand_requires_no_more_than_replicas_that_stand_alone():
    for demand_per_s in (0.5, 1.5, 3.2, 8.0):
        single = sizing(REPORT).needed_without_retries(demand_per_s * PER_REPLICA)
        assert sizing(REPORT).required(demand_per_s * PER_REPLICA).replicas <= single
    assert sizing(WITHOUT_CURVE).needed_without_retries(3.0) is None


def test_a_ceiling_on_the_power_counts_the_load_that_is_offered():
    """The margin of the demand takes no power."""
    powers = tuple(1 + 9 * load for load in LOADS for _ in MULTIPLES)
    table = PowerTable(REPORT.full_batch_size * 1e3 / REPORT.full_batch_ms, 1.0, 10.0, powers)
    report = replace(REPORT, power_limit_w=15.0, powers=table.to_floats())
    demand = 2 * PER_REPLICA
    calm = replace(sizing(report), offered_per_s=demand / 2)
    needed = sizing(REPORT).required(demand)
    assert calm.required(demand) == needed
    assert sizing(report).required(demand).replicas < needed.replicas
