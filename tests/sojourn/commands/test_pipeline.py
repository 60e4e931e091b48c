import json
import os
import signal
import subprocess
import sys

import pytest
import yaml

from sojourn.cli import main
from tests.support.pipelines.configs import config
from tests.support.ports import free_port
from tests.support.processes.services import get, post
from tests.support.readme import ROOT
from tests.support.waiting import LIMIT_S


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump(config()))
    return str(path)


def test_plan(file, tmp_path, capsys, as_json, refused):
    bursty = tmp_path / "bursty.yaml"
    arguments = ["pipeline", "plan", file, "--arrival-rate", "4000", "--response-time-ms", "20"]
    plan = as_json(*arguments)
    # One worker of the first stage serves 4 items in 1.3 ms: 3,077 per second.
    workers = {stage["name"]: stage["workers"] for stage in plan["stages"]}
    assert workers == {"doubler": 2, "again": 1}
    assert plan["cost"] == 4.5
    assert plan["predicted_percentile_ms"] < 20
    document = config(autoscaling={"max_workers": 4, "burst_factor": 2})
    bursty.write_text(yaml.safe_dump(document))
    arguments[2:5] = [str(bursty), "--arrival-rate", "2000"]
    assert main(arguments) == 0
    assert "cost 4.5" in capsys.readouterr().out
    impossible = refused(*arguments[:-1], "1")
    assert "no number of workers keeps 99% of requests within 1 ms" in impossible


def test_run_keeps_the_order_and_has_errors_in_their_place(file, tmp_path, capsys):
    lines = ['{"x": [1, 2, 3]}', "nonsense", '{"x": [-1, 0, 0]}', '{"x": [1]}', '{"x": [2, 0, 0]}']
    items = tmp_path / "items.jsonl"
    items.write_text("\n".join(lines))
    assert main(["pipeline", "run", file, str(items), "--json"]) == 0
    out, err = capsys.readouterr()
    results = [json.loads(line) for line in out.splitlines()]
    assert results[0] == [4, 8, 12]
    assert results[1]["error"].startswith("line 2: ")
    assert results[2] == {"error": "stage 'again' failed on this request"}
    assert results[3] == {"error": "line 4: x: the shape must be (3,), not (1,)"}
    assert results[4] == [8, 0, 0]
    summary = json.loads(err)
    assert (summary["completed"], summary["failed"]) == (2, 3)


@pytest.mark.slow
def test_profile(file, as_json, refused):
    assert "pipeline.example: measuring needs it" in refused("pipeline", "profile", file)
    path = ROOT / "configs/digits-pipeline.yaml"
    profiles = as_json("pipeline", "profile", path, "--seconds", "0.01")
    assert list(profiles) == ["decode", "classify", "label"]
    assert profiles["classify"]["max_batch_size"] == 32
    assert profiles["classify"]["latency_ms"] == sorted(profiles["classify"]["latency_ms"])


@pytest.mark.slow
def test_serve_answers_until_it_is_interrupted(file):
    command = [sys.executable, "-m", "sojourn.cli", "pipeline", "serve", file]
    command += ["--port", str(free_port()), "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        shown = iter(run.stdout.readline, "}\n")
        url = json.loads("".join(shown) + "}")["url"]
        example = get(f"{url}/sojourn/example").json()
        answer = post(f"{url}/v2/models/twice/infer", json=example).json()
        assert answer["outputs"][0]["data"] == [0, 0, 0]
        run.send_signal(signal.SIGINT)
        assert run.wait(LIMIT_S) == 0


@pytest.mark.slow
def test_the_code_of_stages_may_be_in_the_current_folder(tmp_path):
    (tmp_path / "mine.py").write_text("def twice(item):\n    return {'y': 2 * item['x']}\n")
    document = config(steps=[{"stage": {"code": "mine:twice"}}])
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(document))
    done = subprocess.run(
        # With -P, Python adds no folder of its own: as the installed command.
        [sys.executable, "-P", "-m", "sojourn.cli", "pipeline", "run", "p.yaml", "-"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input='{"x": [1, 2, 3]}',
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == {"y": [2, 4, 6]}
