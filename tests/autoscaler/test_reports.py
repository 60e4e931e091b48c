import math
from dataclasses import replace

import pytest

from autoscaler.controller import AutoscalerSettings, ReplicaReport
from sojourn.errors import InvalidInputError

VALUES = {
    "offered_total": 10.0,
    "refused_total": 1.0,
    "completed_total": 8.0,
    "queue_length": 1.0,
    "full_batch_size": 32.0,
    "full_batch_ms": 10.8,
    "start_time_s": 7.0,
    "sla_response_time_ms": 100.0,
    "sla_percentile": 99.0,
}


def test_settings_travel_as_floats():
    settings = AutoscalerSettings(
        window_s=20, forecast="linear", hold_s=60, burst_factor=1.5, retries=3
    )
    values = settings.to_floats()
    assert all(type(value) is float for value in values.values())
    assert all(name.startswith("settings_") for name in values)
    assert AutoscalerSettings.from_floats(values) == settings


def test_settings_that_are_not_there_keep_their_defaults():
    assert AutoscalerSettings.from_floats({"settings_hold_s": 5.0}) == AutoscalerSettings(hold_s=5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window_s", 0.5),
        ("window_s", 301),
        ("window_s", "10"),
        ("window_s", True),
        ("hold_s", -1),
        ("hold_s", math.nan),
        ("burst_factor", 0.9),
        ("backlog_drain_s", 0),
        ("request_delay_ms", -0.1),
        ("retry_delay_ms", math.inf),
        ("retries", 1.5),
        ("retries", -1),
        ("retries", None),
        ("forecast", "oracle"),
        ("forecast", 1),
    ],
)
def test_wrong_setting_is_named_in_one_line(name, value):
    with pytest.raises(InvalidInputError, match=f"^{name}: must be .+ not [^\n]+$"):
        AutoscalerSettings(**{name: value})


@pytest.mark.parametrize("values", [{"settings_forecast": 99.0}, {"settings_retries": math.nan}])
def test_wrong_number_of_a_setting_is_refused(values):
    with pytest.raises(InvalidInputError):
        AutoscalerSettings.from_floats(values)


def test_report_from_floats():
    settings = AutoscalerSettings(hold_s=33)
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
        {"sla_response_time_ms": 0.0},
        {"time_s": math.inf},
    ],
)
def test_values_that_cannot_be_are_refused(wrong):
    report = ReplicaReport.from_floats("a", 5.0, VALUES)
    with pytest.raises(InvalidInputError, match=r"^report of a: "):
        replace(report, **wrong)
