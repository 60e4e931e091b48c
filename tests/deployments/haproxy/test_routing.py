import importlib
import os
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from ray._private import ray_constants

from deployments.haproxy.command import RAYS_HAPROXY
from deployments.haproxy.routing import (
    SUPERVISOR,
    retries_in_force,
    serve_environment,
    supervisor_environment,
)
from policy.try_delays import RETRIES
from tests.support.readme import ROOT


@pytest.mark.slow
def test_ray_knows_every_setting_by_its_name():
    """A setting that Ray renamed would silently have no effect."""
    environment = {**serve_environment(), **supervisor_environment(Path("/usr/bin/ha"))}
    serve = [name for name in environment if name.startswith("RAY_SERVE_")]
    assert set(environment) - set(serve) == {ray_constants.RAY_WORKER_NICENESS}
    script = (
        "import ray.serve._private.constants as constants; names = set(dir(constants)); "
        f"print([n for n in {serve!r} if not {{n, n.removeprefix('RAY_SERVE_')}} & names], "
        "constants.RAY_SERVE_ENABLE_HA_PROXY, constants.RAY_SERVE_HAPROXY_BALANCE_ALGORITHM, "
        "constants.RAY_SERVE_HAPROXY_RETRY_ON, constants.RAY_SERVE_HAPROXY_RETRIES)"
    )
    output = subprocess.check_output(
        [sys.executable, "-c", script], env={**os.environ, **environment}, text=True
    )
    assert output == "[] True random(1) 503 conn-failure empty-response 5\n"


def test_the_retries_in_force_are_those_of_the_environment(monkeypatch):
    monkeypatch.delenv("RAY_SERVE_HAPROXY_RETRIES", raising=False)
    assert retries_in_force() == RETRIES
    monkeypatch.setenv("RAY_SERVE_HAPROXY_RETRIES", "2")
    assert retries_in_force() == 2


def test_ray_runs_the_supervisor_where_it_is_installed(tmp_path, monkeypatch):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"][SUPERVISOR].partition(":")
    assert callable(getattr(importlib.import_module(module), name))
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    assert supervisor_environment() == {}
    (tmp_path / SUPERVISOR).touch()
    assert supervisor_environment()[RAYS_HAPROXY] == str(tmp_path / SUPERVISOR)
    # On another machine it may be elsewhere.
    assert supervisor_environment(Path("/usr/bin/ha"))[RAYS_HAPROXY] == "/usr/bin/ha"
