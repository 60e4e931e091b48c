"""What is said of the requests of a fuzz."""

from typing import Any

from benchmarks.resilience.fuzz import summary


def entry(status: int, url: str = "http://x/v2") -> dict[str, Any]:
    return {"request": {"method": "POST", "url": url}, "response": {"status": status}}


def test_statuses_are_counted_and_errors_of_the_server_named_but_no_refusals() -> None:
    entries = [entry(400)] * 1200 + [entry(503), entry(504), entry(500, "http://x/v2/models/m")]
    assert summary(entries) == [
        "1,203 cases were answered 1,200 × 400, 1 × 500, 1 × 503, 1 × 504",
        "POST http://x/v2/models/m: 500",
    ]


def test_only_the_first_errors_are_named() -> None:
    assert len(summary([entry(500)] * 100)) == 6
