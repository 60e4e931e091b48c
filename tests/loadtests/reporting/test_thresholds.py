import pytest

from deployments.config.user_config import SLAConfig
from loadtests.reporting.thresholds import Thresholds

SLA = SLAConfig(response_time_ms=100, percentile=99)
SOUND = {
    "requests": 1000,
    "ok": 990,
    "answered": 0,
    "wrong_answers": 0,
    "lost": 0,
    "refused": 10,
    "share_within_sla": 0.99,
    "sla_met": True,
}


@pytest.mark.parametrize(
    ("thresholds", "result", "missed"),
    [
        (Thresholds(), {}, []),
        (Thresholds(), {"wrong_answers": 1}, ["wrong answers: 1, not 0"]),
        (Thresholds(), {"lost": 2}, ["requests without any answer: 2, not 0"]),
        (Thresholds(), {"ok": 0, "refused": 10}, ["errors other than refusals: 990, not 0"]),
        (Thresholds(), {"ok": 0, "refused": 1000}, []),
        (Thresholds(), {"sla_met": False}, []),
        (
            Thresholds(SLA),
            {"sla_met": False, "share_within_sla": 0.5},
            ["the SLA was not met: 50.00% in time, not 99% of requests within 100 ms"],
        ),
        (Thresholds(min_right_percent=99), {"lost": 10, "refused": 0}, []),
        (Thresholds(min_right_percent=99.5), {}, ["right answers: 99.00%, not 99.5%"]),
        (Thresholds(min_right_percent=99), {"ok": 0, "answered": 990}, []),
        (Thresholds(max_refused_percent=1), {}, []),
        (Thresholds(max_refused_percent=0.9), {}, ["refused: 1.00%, more than 0.9%"]),
        (Thresholds(SLA, 100, 0), {"sla_met": False}, ["the SLA", "right answers", "refused"]),
    ],
)
def test_each_threshold_is_checked_by_itself(thresholds, result, missed):
    found = thresholds.misses({**SOUND, **result})
    assert len(found) == len(missed)
    assert all(line.startswith(start) for line, start in zip(found, missed, strict=True))
