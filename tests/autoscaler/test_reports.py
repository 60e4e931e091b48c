import math
from dataclasses import replace

import pytest

from autoscaler.reports import BOTTLENECKS, ReplicaReport, bottleneck_to_floats, curve_to_floats
from autoscaler.settings import AutoscalerSettings
from policy.errors import InvalidInputError
from policy.load_lateness import LoadLatenessCurve

VALUES = {
    "offered_total": 10.0,
    "refused_total": 1.0,
    "queue_length": 1.0,
    "full_batch_size": 32.0,
    "full_batch_ms": 10.8,
    "start_time_s": 7.0,
    "sla_response_time_ms": 100.0,
    "sla_percentile": 99.0,
    "counted_s": 3.0,
}


def test_report_from_floats():
    settings = AutoscalerSettings(scale_down_delay_s=33)
    report = ReplicaReport.from_floats("a", 5.0, {**VALUES, **settings.to_floats(), "other": 1.0})
    assert report.settings == settings
    assert (report.replica_id, report.time_s, report.start_time_s) == ("a", 5.0, 7.0)
    assert (report.objective.response_time_ms, report.objective.percentile) == (100.0, 99.0)
    assert ReplicaReport.from_floats("a", 5.0, VALUES).settings is None


def test_missing_values_are_named():
    values = {name: value for name, value in VALUES.items() if name != "queue_length"}
    with pytest.raises(InvalidInputError, match="report of a: queue_length missing"):
        ReplicaReport.from_floats("a", 5.0, values)


@pytest.mark.parametrize(
    "wrong",
    [
        {"offered_total": -1.0},
        {"queue_length": math.nan},
        {"full_batch_ms": 0.0},
        {"sla_percentile": 100.0},
        {"time_s": math.inf},
    ],
)
def test_impossible_values_are_refused(wrong):
    report = ReplicaReport.from_floats("a", 5.0, VALUES)
    with pytest.raises(InvalidInputError, match=r"^report of a: "):
        replace(report, **wrong)


CURVE = LoadLatenessCurve(140.0, tuple(i / 100 for i in range(len(LoadLatenessCurve.MULTIPLES))))
LEVELS = tuple(0.9 / overload for overload in LoadLatenessCurve.OVERLOADS)


@pytest.mark.parametrize(
    ("curve", "out_of_reach"),
    [(CURVE, False), (replace(CURVE, overload_levels=LEVELS), False), (None, False), (None, True)],
)
def test_a_curve_or_why_there_is_none_survives_as_floats(curve, out_of_reach):
    values = curve_to_floats(curve, out_of_reach=out_of_reach)
    assert all(type(value) is float for value in values.values())
    report = ReplicaReport.from_floats("a", 5.0, {**VALUES, **values})
    assert (report.curve, report.out_of_reach) == (curve, out_of_reach)


def test_an_impossible_curve_is_refused():
    values = {**VALUES, **curve_to_floats(CURVE), "late_share_3": 2.0}
    with pytest.raises(InvalidInputError, match="report of a: late_shares"):
        ReplicaReport.from_floats("a", 5.0, values)


@pytest.mark.parametrize("bottleneck", BOTTLENECKS)
def test_a_bottleneck_survives_as_floats(bottleneck):
    floats = {**VALUES, **bottleneck_to_floats(bottleneck)}
    assert ReplicaReport.from_floats("a", 1.0, floats).bottleneck == bottleneck
