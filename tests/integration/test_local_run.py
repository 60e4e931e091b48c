"""A local run on real Ray: who can reach it, and what is left of it."""

import os
import re
import signal
import socket
import subprocess

import httpx
import psutil
import pytest

from tests.support.ports import free_port
from tests.support.processes.services import (
    BIN,
    ROOT,
    Running,
    get,
    load_document,
    post,
    serving,
)
from tests.support.waiting import LIMIT_S, wait_for

pytestmark = pytest.mark.integration

BRITTLE = """\
from deployments.models.base import Model, TensorSpec


class Brittle(Model):
    inputs = outputs = (TensorSpec("x", "FP32"),)

    def load(self, device):
        print("loading the weights")

    def forward(self, batch):
        check(batch["x"])
        return {"x": batch["x"]}


def check(x):
    if x.any(): raise ValueError("a bad pixel")
"""


def processes_by_name(service: Running, *names):
    return [
        process
        for process in service.process.children(recursive=True)
        if any(name in (process.name(), *process.cmdline()[:1]) for name in names)
    ]


def test_a_public_address_opens_the_service_alone_errors_are_shown_and_nothing_is_left(
    tmp_path, monkeypatch
):
    (tmp_path / "brittle.py").write_text(BRITTLE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    document = load_document("digits.yaml")
    document["applications"][0]["args"]["model"] = {
        "name": "brittle",
        "import_path": "brittle:Brittle",
    }
    config = tmp_path / "brittle.yaml"
    with serving(config, document, "--host", "0.0.0.0", "--insecure") as service:
        port = httpx.URL(service.url).port
        assert service.listens_beyond_this_machine() == {("0.0.0.0", port)}
        address = socket.gethostbyname(socket.gethostname())
        assert get(f"http://{address}:{port}/v2/health/ready").status_code == 200
        row = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
        for _ in range(10):
            answer = post(f"{service.url}/v2/models/brittle/infer", json={"inputs": [row]})
            assert answer.status_code == 500
        errors = get(f"{service.url}/sojourn/policy").json()["model_errors"]
        assert errors == {"requests": 10, "last": "ValueError (brittle.py:16)"}
        assert wait_for(lambda: "and 9 like it" in config.with_suffix(".log").read_text())
        # Ray asks those who can reach it for a token.
        status = f"{service.summary['dashboard']}/api/serve/applications/"
        assert get(status).status_code == 401
        # Without its GCS, Ray can neither stop its processes nor say so; HAProxy loses its parent.
        lost = processes_by_name(service, "gcs_server", "ray::HAProxyManager")
        assert len(lost) == 2
        for process in lost:
            process.kill()
    said = config.with_suffix(".log").read_text()
    assert f"Port {port} is open to everyone who reaches 0.0.0.0" in said
    assert "graceful_shutdown failed" not in said
    lines = [re.sub(r"^\[replica \d+\] ", "", line) for line in said.splitlines()]
    assert "loading the weights" in lines
    assert lines.count("ValueError: a bad pixel") == 1
    assert '    if x.any(): raise ValueError("a bad pixel")' in lines
    assert "model 'brittle' failed: ValueError (brittle.py:16), and 9 like it" in lines


def test_a_run_ended_while_it_starts_leaves_nothing_and_no_trace(tmp_path):
    process = subprocess.Popen(
        # `timeout` signals the command, and then its whole process group.
        ["timeout", "300", BIN / "sojourn", "serve", "--port", str(free_port())],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    running = psutil.Process(process.pid)
    assert wait_for(
        lambda: (
            process.poll() is not None
            or any(one.name() == "raylet" for one in running.children(recursive=True))
        )
    )
    assert process.poll() is None, process.communicate()
    started = running.children(recursive=True)
    os.kill(process.pid, signal.SIGTERM)
    output, errors = process.communicate(timeout=LIMIT_S)
    assert output == ""
    assert set(errors.splitlines()) <= {"starting Ray", "deploying digits", "stopping"}
    _, alive = psutil.wait_procs(started, timeout=LIMIT_S)
    assert not alive
