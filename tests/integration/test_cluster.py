"""The README's section on a cluster, run as written, by a user who has nothing set."""

import os
import subprocess
from collections.abc import Callable

import psutil
import pytest

from sojourn.cli import main
from tests.support.processes.services import BIN, ROOT, get, post
from tests.support.readme import blocks
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration

#: Where the config has the service listen.
URL = "http://127.0.0.1:8000"
TIMEOUT_S = 300

Shell = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shell(tmp_path):
    """Run commands as a new login of a user without a token would; stop Ray at the end."""

    def run(commands, folder=ROOT):
        return subprocess.run(
            ["bash", "-e", "-c", commands],
            cwd=folder,
            env={
                "HOME": str(tmp_path),
                "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    try:
        yield run
    finally:
        run(".venv/bin/ray stop --force")


def ours(home):
    """Return the processes of Ray that were started with `home`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.name() in ("gcs_server", "raylet"):
                found += [process] if process.environ().get("HOME") == str(home) else []
        except psutil.Error:
            continue
    return found


def test_the_section_on_a_cluster_and_a_users_own_model_work_as_written(shell, tmp_path):
    (commands,) = blocks("sh", section="On a cluster")
    started = shell(commands)
    assert started.returncode == 0, started.stderr
    assert "Traceback" not in started.stderr
    ready = f"{URL}/v2/models/digits/ready"
    assert wait_for(lambda: get(ready).status_code == 200)
    # A second shell, with the first line only.
    environment, _, _ = commands.partition("\n")
    status = shell(f"{environment}\n.venv/bin/serve status")
    assert "RUNNING" in status.stdout, status.stderr
    # Without it, Ray turns the user away.
    assert shell(".venv/bin/serve status").returncode != 0
    _deploy_a_project(shell, tmp_path)
    assert len(ours(tmp_path)) == 2
    assert shell(f"{environment}\n.venv/bin/ray stop").returncode == 0
    assert not ours(tmp_path)


def _deploy_a_project(shell, home):
    """Pack and deploy as docs/deploying.md says, in a project of `sojourn init`."""
    project = home / "my-models"
    assert main(["init", str(project)]) == 0
    package, deploy = blocks("sh", "docs/deploying.md", "Pack a model")
    packed = shell(package, project)
    assert packed.returncode == 0, packed.stderr
    (project / "model.py").rename(home / "model.py.away")  # as on another machine
    # Ray runs already.
    deployed = shell(deploy.replace("ray start --head\n", ""), project)
    assert deployed.returncode == 0, deployed.stderr
    assert wait_for(lambda: get(f"{URL}/v2/models/classifier/ready").status_code == 200)
    example = get(f"{URL}/sojourn/example").json()
    answer = post(f"{URL}/v2/models/classifier/infer", json=example)
    assert {tensor["name"] for tensor in answer.json()["outputs"]} == {"label", "scores"}
