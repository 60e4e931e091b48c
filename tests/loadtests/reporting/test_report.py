import csv

import numpy as np
import pytest

from deployments.config.user_config import SLAConfig
from loadtests.records import Outcome, Records
from loadtests.reporting.report import (
    WINDOWS,
    per_second,
    per_window,
    report,
    write_csv,
)
from loadtests.schedule import Schedule, Step

SLA = SLAConfig(response_time_ms=100, percentile=90)


def made(response_ms, outcome, step_s=10.0, lag_ms=0.0, awaited_ms=0.0) -> tuple[Records, Schedule]:
    """Return records of requests due evenly over two steps; the second is twice as long."""
    n = len(response_ms)
    scheduled_s = np.arange(n) * 3 * step_s / n
    records = Records.begin(scheduled_s)
    records.sent_s[:] = scheduled_s + lag_ms / 1000
    records.finished_s[:] = scheduled_s + np.array(response_ms) / 1000
    records.outcome[:] = outcome
    records.connection_wait_s[:] = awaited_ms / 1000
    steps = (Step(step_s, n / 3 / step_s), Step(2 * step_s, n / 3 / step_s))
    return records, Schedule(scheduled_s, steps)


def test_every_request_is_counted_once():
    failed = [Outcome.TIMEOUT, Outcome.CONNECTION, Outcome.UNANSWERED, 429, 503, 503, 504, 500]
    outcome = [*[Outcome.OK] * 21, Outcome.WRONG, *failed]
    found = report(*made([50] * 30, outcome), SLA)
    assert (found["requests"], found["ok"], found["wrong_answers"]) == (30, 21, 1)
    statuses = {"429": 1, "500": 1, "503": 2, "504": 1}
    assert found["failed"] == {"timeout": 1, "connection": 1, "unanswered": 1, **statuses}
    assert (found["lost"], found["refused"]) == (3, 4)
    assert found["offered_rate_per_s"] == pytest.approx(1.0)
    assert found["ok"] + found["wrong_answers"] + sum(found["failed"].values()) == 30
    assert sum(step["requests"] for step in found["by_step"]) == 30


def test_percentiles_are_observed_response_times_of_right_answers():
    response_ms = [*range(1, 101), 5000]
    found = report(*made(response_ms, [Outcome.OK] * 100 + [503]), SLA)
    percentiles = found["response_percentiles_ms"]
    assert percentiles == pytest.approx({"50": 50, "90": 90, "95": 95, "99": 99, "99.9": 100})


@pytest.mark.parametrize(("late", "met"), [(3, True), (4, False)])
def test_the_sla_is_judged_by_the_share_in_time(late, met):
    found = report(*made([101] * late + [100 - 1e-6] * (30 - late), [Outcome.OK] * 30), SLA)
    assert found["share_within_sla"] == pytest.approx(1 - late / 30)
    assert found["sla_met"] is met


def test_fast_refusals_do_not_help_the_sla():
    found = report(*made([1] * 30, [Outcome.OK] * 26 + [503] * 4), SLA)
    assert found["response_percentiles_ms"]["99"] == pytest.approx(1)
    assert found["sla_met"] is False


def test_steps_have_their_own_numbers():
    records, schedule = made([10] * 10 + [200] * 20, [Outcome.OK] * 30)
    first, second = report(records, schedule, SLA)["by_step"]
    assert (first["start_s"], second["start_s"]) == (0, 10)
    assert (first["requests"], second["requests"]) == (10, 20)
    assert (first["sla_met"], second["sla_met"]) == (True, False)
    assert first["achieved_rate_per_s"] == pytest.approx(1.0)


def test_a_late_generator_is_reported_unless_it_waited_for_a_connection():
    late, waited = (
        report(*made([50] * 30, [Outcome.OK] * 30, lag_ms=20, awaited_ms=awaited_ms), SLA)
        for awaited_ms in (0, 19)
    )
    assert (late["generator_fell_behind"], waited["generator_fell_behind"]) == (True, False)
    assert late["generator_lag_ms"]["p99"] == pytest.approx(20)
    assert waited["generator_lag_ms"]["p99"] == pytest.approx(1)
    assert (late["waited_for_connection"], waited["waited_for_connection"]) == (0, 30)


def test_a_test_without_any_answer_has_a_report():
    records, schedule = made([0] * 30, [Outcome.UNANSWERED] * 30)
    records.sent_s[:] = records.finished_s[:] = np.nan
    found = report(records, schedule, SLA)
    assert found["achieved_rate_per_s"] == 0
    assert found["share_within_sla"] == 0
    assert found["response_percentiles_ms"]["99"] is None
    assert len(per_second(records, schedule, SLA)) == 30


def test_seconds_add_up_to_the_whole(tmp_path):
    records, schedule = made([10] * 40 + [200] * 50, [Outcome.OK] * 80 + [503] * 10)
    rows = per_second(records, schedule, SLA)
    write_csv(tmp_path / "seconds.csv", rows)
    with (tmp_path / "seconds.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [int(row["second"]) for row in read] == list(range(30))
    assert sum(int(row["scheduled"]) for row in read) == 90
    assert sum(int(row["ok"]) for row in read) == 80
    assert sum(int(row["failed"]) for row in read) == 10
    assert read[0]["within_sla_share"] == "1.0"
    assert read[29]["p99_ms"] == ""


@pytest.mark.parametrize(("rate_per_s", "length_s"), [(1, 25), (10, 5), (100, 1)])
def test_windows_are_long_enough_for_the_percentile(rate_per_s, length_s):
    """At 90%, five of fifty requests are late; but there are twelve windows at least."""
    n = 300 * rate_per_s
    records, schedule = made([10] * n, [Outcome.OK] * n, step_s=100.0)
    window_s, rows = per_window(records, schedule, SLA)
    assert window_s == length_s
    assert len(rows) == max(WINDOWS, 300 / length_s)
    assert [row["p50_ms"] for row in rows] == pytest.approx([10] * len(rows))
