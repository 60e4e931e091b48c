"""The commands and the figures of the guides that need no service."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from sojourn.cli import COMMANDS, cli
from tests.support.processes.pages import run_block
from tests.support.readme import ROOT, blocks

CONCEPTS = "docs/concepts.md"
TUTORIAL = "docs/tutorial.md"


@pytest.mark.slow
@pytest.mark.parametrize(("percentile", "response_time_ms"), [("90", "10"), ("99", "15")])
def test_what_an_sla_costs_is_as_the_table_says(percentile: str, response_time_ms: str) -> None:
    page = (ROOT / CONCEPTS).read_text()
    (times,) = re.findall(r"^\| percentile \| (.+) \|$", page, re.MULTILINE)
    (cells,) = re.findall(rf"^\| {percentile} \| (.+) \|$", page, re.MULTILINE)
    replicas = dict(zip(times.split(" | "), cells.split(" | "), strict=True))
    (plan,) = blocks("console", CONCEPTS, "Choose the SLA")
    asked = plan.replace("--response-time-ms 15", f"--response-time-ms {response_time_ms}")
    said = run_block(asked.replace("--percentile 99", f"--percentile {percentile}"), ROOT, {})
    assert f"{replicas[f'{response_time_ms} ms']} replicas" in said


@pytest.mark.slow
def test_the_tutorial_until_something_runs(tmp_path: Path) -> None:
    plan, solve, check, *_ = blocks("console", TUTORIAL)
    shown_plan, shown_policy, *_ = blocks("text", TUTORIAL)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    assert shown_plan.strip() in run_block(plan, tmp_path, {})
    solved = run_block(solve, tmp_path, {})
    # The optimum is flat: where the search ends depends on how a machine rounds.
    assert _numbers(shown_policy) == pytest.approx(
        {name: value for name, value in _numbers(solved).items() if name in shown_policy}, rel=0.002
    )
    run_block(check, tmp_path, {})
    assert (tmp_path / "first.yaml").exists()


def _numbers(table: str) -> dict[str, float]:
    """Return the numbers of a table of two columns by their names."""
    rows = re.findall(r"^│ (.+?) +│ +([\d.]+) │$", table, re.MULTILINE)
    return {name: float(value) for name, value in rows}


@pytest.mark.slow
def test_every_command_of_the_guides_has_the_options_shown() -> None:
    for block in blocks("console", CONCEPTS):
        program, name, *options = shlex.split(block)
        assert program == "sojourn"
        assert name in COMMANDS
        known = CliRunner().invoke(cli, [name, "--help"]).output
        assert [one for one in options if one.startswith("--") and one not in known] == []
