import re
import shlex
import shutil
from importlib import import_module
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from deployments.http.app import InferenceApp
from sojourn.cli import COMMANDS, cli, main
from tests.support.models.doubles_service import hosting, listening, make_service
from tests.support.processes.pages import run_block
from tests.support.readme import ROOT, blocks

CONCEPTS = "docs/concepts.md"
TUTORIAL = "docs/tutorial.md"


@pytest.mark.slow
@pytest.mark.parametrize(("percentile", "response_time_ms"), [("90", "10"), ("99", "15")])
def test_what_an_sla_costs_is_as_the_table_says(percentile, response_time_ms):
    page = (ROOT / CONCEPTS).read_text()
    (times,) = re.findall(r"^\| percentile \| (.+) \|$", page, re.MULTILINE)
    (cells,) = re.findall(rf"^\| {percentile} \| (.+) \|$", page, re.MULTILINE)
    replicas = dict(zip(times.split(" | "), cells.split(" | "), strict=True))
    (plan,) = blocks("console", CONCEPTS, "Choose the SLA")
    asked = plan.replace("--response-time-ms 15", f"--response-time-ms {response_time_ms}")
    said = run_block(asked.replace("--percentile 99", f"--percentile {percentile}"), ROOT, {})
    assert f"{replicas[f'{response_time_ms} ms']} replicas" in said


@pytest.mark.slow
def test_the_tutorial_until_something_runs(tmp_path):
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


@pytest.mark.slow
async def test_what_a_service_of_serve_batch_becomes(tmp_path, monkeypatch, capsys):
    """Both blocks of code run: the model is checked, and FastAPI in front of it asks it."""
    source, front = blocks("python", "docs/migrating.md")
    (tmp_path / "iris.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["serve", "iris:Iris", "--sla", "50ms@95", "--check"]) == 0
    assert "iris:Iris is fine" in capsys.readouterr().err
    model = import_module("iris").Iris()
    model.load("cpu")
    async with make_service(model, "iris") as service:
        app = InferenceApp(service, "1")
        with hosting(app):
            async with listening(app) as (_, port):
                monkeypatch.setenv("MODEL_URL", f"http://127.0.0.1:{port}")
                names: dict[str, Any] = {}
                exec(front, names)
                transport = httpx.ASGITransport(names["api"])
                async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                    answer = await client.post("/species", json=[5.1, 3.5, 1.4, 0.2])
                await names["model"].aclose()
    assert (answer.status_code, answer.json()) == (200, 0)


def _numbers(table):
    """Return the numbers of a table of two columns by their names."""
    rows = re.findall(r"^│ (.+?) +│ +([\d.]+) │$", table, re.MULTILINE)
    return {name: float(value) for name, value in rows}


@pytest.mark.slow
def test_every_command_of_the_guides_has_the_options_shown():
    for block in blocks("console", CONCEPTS):
        program, name, *options = shlex.split(block)
        assert program == "sojourn"
        assert name in COMMANDS
        known = CliRunner().invoke(cli, [name, "--help"]).output
        assert [one for one in options if one.startswith("--") and one not in known] == []
