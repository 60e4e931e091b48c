from typing import Any

import numpy as np
import pytest

from deployments.config.user_config import SLAConfig
from loadtests.records import Outcome, Records
from loadtests.reporting.page import Setting, render
from loadtests.reporting.report import per_second, report
from loadtests.schedule import Step, poisson_schedule
from tests.support.html_pages import check_whole

SLA = SLAConfig(response_time_ms=100, percentile=99)
SETTING = Setting("m<odel>", "2026-01-01 12:00", "sojourn loadtest --model m", 64, [("seed", "7")])
DRAWN_AT_TIMES = {"SLA: p99", "p99", "p99 predicted", "sized for", "replicas", "failed"}


def service(**changes):
    said: dict[str, Any] = {"predicted_ms": {}, "replicas": None, "demand_per_s": None}
    return [{"at_s": 0.5 + second, **said, **changes} for second in range(5)]


def page(response_ms=50.0, lag_ms=0.0, failed=None, every=10, **told):
    """Render a test of five seconds; one request in `every` has the outcome `failed`."""
    schedule = poisson_schedule([Step(2, 20), Step(3, 60)], seed=1)
    records = Records.begin(schedule.arrivals_s)
    records.sent_s[:] = records.scheduled_s + lag_ms / 1e3
    records.finished_s[:] = records.scheduled_s + response_ms / 1e3
    records.outcome[:] = Outcome.OK
    if failed is not None:
        records.outcome[::every] = failed
    result = {
        **report(records, schedule, SLA),
        "missed": [],
        "failure_examples": [],
        "service": [],
        "generator_cpu_us": 400.0,
        **told,
    }
    return render(result, per_second(records, schedule, SLA), records, schedule, SETTING)


@pytest.mark.parametrize(
    ("told", "drawn"),
    [
        ({"failed": Outcome.CONNECTION}, {"SLA: p99", "p99", "right answers", "failed"}),
        (
            {"failed": Outcome.UNANSWERED, "every": 1, "lag_ms": np.nan, "response_ms": np.nan},
            {"SLA: 99%", "failed"},
        ),
        (
            {"service": service(replicas=2, demand_per_s=70.0, predicted_ms={"99": 90.0})},
            {"SLA: p99", "p99", "p99 predicted", "right answers", "sized for", "replicas"},
        ),
    ],
    ids=["failures", "nothing answered", "service"],
)
def test_a_page_is_whole_and_needs_nothing_from_elsewhere(told, drawn):
    text = page(**told)
    assert "m<odel>" in check_whole(text).text
    assert "m<odel>" not in text
    # Every curve is named in a legend or beside its axis, and none that has no data.
    assert all(f">{name}<" in text for name in drawn)
    assert all(f">{name}<" not in text for name in DRAWN_AT_TIMES - drawn)
