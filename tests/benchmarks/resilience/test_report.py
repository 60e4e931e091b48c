"""The table of the experiments."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.resilience.report import (
    BEGIN,
    COLUMNS,
    END,
    markdown,
    not_completed,
    write,
    write_into,
)
from benchmarks.resilience.tally import Outcome, Request, tally


def row(name: str, *notes: str) -> dict[str, Any]:
    requests = [Request(0.0, 0.1, Outcome.RIGHT, 200)] * 1234
    counted = asdict(tally(requests, 0, 0.0, 0.5, 99))
    return {"experiment": name, **counted, "machine_load": 1.5, "notes": list(notes)}


def test_the_table_has_a_line_for_each_experiment_and_notes_below() -> None:
    lines = markdown([row("one"), row("two", "it was seen")]).splitlines()
    assert [line.count("|") for line in lines[:4]] == [len(COLUMNS) + 2] * 4
    assert lines[2].startswith("| `one` | 1,234 | 1,234 | 0 |")
    assert lines[2].endswith("| 100 | 0 | 1.5 |")
    assert lines[4:] == ["", "- `two`: it was seen"]


def test_both_files_hold_every_experiment(tmp_path: Path) -> None:
    rows = [row("one"), row("two", "it was seen")]
    write(rows, tmp_path / "new")
    assert (tmp_path / "new/resilience.md").read_text() == markdown(rows)
    assert json.loads((tmp_path / "new/resilience.json").read_text())["experiments"] == rows


def test_an_experiment_that_could_not_be_run_is_in_the_table_without_numbers() -> None:
    lines = markdown([row("one"), not_completed("two", "no disk")]).splitlines()
    assert set(lines[3].split("|")) == {"", " `two` ", "  "}
    assert lines[5] == "- `two`: not completed: no disk"


def test_the_table_takes_the_place_of_the_one_before_it_in_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    for rows in ([row("one")], [row("one"), row("two", "it was seen")]):
        write_into(page, rows)
        assert page.read_text() == f"before\n{BEGIN}\n{markdown(rows)}\n{END}after\n"


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}after\n")
    with pytest.raises(SystemExit, match="has no lines"):
        write_into(page, [row("one")])
    assert page.read_text() == f"before\n{BEGIN}after\n"
