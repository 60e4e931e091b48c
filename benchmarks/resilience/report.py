"""The table of the experiments, for terminals and for pages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

COLUMNS = (
    *("sent", "right", "late", "refused", "failed", "wrong", "lost", "doubled"),
    *("worst_ms", "recovered_s", "machine_load"),
)
#: What stands around the table in a page.
BEGIN, END = "<!-- experiments: begin -->\n", "<!-- experiments: end -->\n"
_HEADINGS = {"worst_ms": "worst, ms", "recovered_s": "SLA again, s", "machine_load": "load"}


def not_completed(experiment: str, reason: str) -> dict[str, Any]:
    """Return the row of an experiment that could not be run."""
    notes = [f"not completed: {reason}"]
    return {"experiment": experiment, **dict.fromkeys(COLUMNS), "notes": notes, "statuses": {}}


def cells(row: dict[str, Any]) -> list[object]:
    """Return the numbers of a row, in the order of `COLUMNS`."""
    return [round(row[name], 1) if isinstance(row[name], float) else row[name] for name in COLUMNS]


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table in Markdown, and what was noted below it."""
    headings = ["experiment", *(_HEADINGS.get(name, name) for name in COLUMNS)]
    lines = [headings, ["---", *("---:" for _ in COLUMNS)]]
    for row in rows:
        numbers = [_number(name, cell) for name, cell in zip(COLUMNS, cells(row), strict=True)]
        lines.append([f"`{row['experiment']}`", *numbers])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    notes = "".join(f"- `{row['experiment']}`: {note}\n" for row in rows for note in row["notes"])
    return f"{table}\n{notes}" if notes else table


def _number(name: str, cell: object) -> str:
    if cell is None:
        return ""
    return f"{cell:,.0f}" if isinstance(cell, int) or name == "worst_ms" else f"{cell:g}"


def around(page: Path) -> tuple[str, str]:
    """Return what stands before and after the table in a page, with the marks.

    Raises
    ------
    SystemExit
        The page has no marks `BEGIN` and `END`.
    """
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{page}: has no lines {BEGIN.strip()} and {END.strip()}")
    return before + begin, end + after


def write_into(page: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Put the table, and what was noted, between the marks of a page; errors as of `around`."""
    before, after = around(page)
    page.write_text(f"{before}\n{markdown(rows)}\n{after}")
