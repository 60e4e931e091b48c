from typing import Any

from loadtests.reporting.table import MAX_STEPS_SHOWN, table

PART: dict[str, Any] = {
    "ok": 0,
    "answered": 7,
    "wrong_answers": 0,
    "lost": 0,
    "requests": 7,
    "waited_for_connection": 0,
    "failed": {},
    "offered_rate_per_s": 1.0,
    "achieved_rate_per_s": 1.0,
    "response_percentiles_ms": {},
    "share_within_sla": 1.0,
    "sla_met": True,
}


def cells(*steps: dict[str, Any], **whole: Any) -> dict[str, list[str]]:
    return dict(table({**PART, **whole, "by_step": list(steps)})[1])


def test_a_kind_of_failure_that_one_step_has_is_a_row_for_all() -> None:
    found = cells(PART, {**PART, "failed": {"503": 2}}, failed={"503": 2})
    assert found["failed: 503"] == ["0", "2", "2"]


def test_one_step_is_the_whole_test_and_many_are_not_shown() -> None:
    assert table({**PART, "by_step": [PART]})[0] == ["whole test"]
    assert table({**PART, "by_step": [PART] * 2})[0] == ["step 1", "step 2", "whole test"]
    assert table({**PART, "by_step": [PART] * (MAX_STEPS_SHOWN + 1)})[0] == ["whole test"]
