"""What a local run tells Ray: HAProxy's script, and settings that close everything to others."""

import subprocess
from pathlib import Path

import pytest

from deployments.config import load_service_config
from deployments.local.environment import environment_of, haproxy_script
from deployments.local.run import run_of

CONFIG = Path(__file__).parents[3] / "configs/digits.yaml"
#: The lines in which Ray's template says where HAProxy listens.
WRITTEN_BY_RAY = """\
frontend prometheus
    bind :9101
    mode http
frontend http_frontend
    bind 127.0.0.1:8000
    http-request deny if { src 10.0.0.0:8000 }
listen stats
  bind *:8404
"""


def run(tmp_path: Path, host: str) -> tuple[list[str], str]:
    """Run the script as Ray runs HAProxy; return the words of ``bind`` lines, and the arguments."""
    config, script, haproxy = (tmp_path / name for name in ("a b.cfg", "script", "hap roxy"))
    config.write_text(WRITTEN_BY_RAY)
    haproxy.write_text('#!/bin/sh\necho "$@"\n')
    haproxy.chmod(0o700)
    script.write_text(haproxy_script(str(haproxy), host, 8000))
    script.chmod(0o700)
    command = [str(script), "-db", "-f", str(config), "-sf", "12"]
    given = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "10.0.0.0:8000" in config.read_text()
    lines = [line.split() for line in config.read_text().splitlines()]
    return [words[1] for words in lines if words[0] == "bind"], given.strip()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "192.0.2.7", "::"])
def test_haproxy_listens_where_it_was_asked_to_and_otherwise_on_this_machine_only(
    tmp_path: Path, host: str
) -> None:
    binds, arguments = run(tmp_path, host)
    assert binds == ["127.0.0.1:9101", f"{host}:8000", "127.0.0.1:8404"]
    assert arguments == f"-db -f {tmp_path}/a b.cfg -sf 12"


def test_the_users_own_haproxy_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", "/opt/haproxy")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    environment = environment_of(run_of([load_service_config(CONFIG)]), tmp_path, "random")
    script = Path(environment["RAY_SERVE_HAPROXY_BINARY_PATH"])
    assert script.parent == tmp_path
    assert 'exec /opt/haproxy "$@"' in script.read_text()


def test_rays_token_is_on_unless_the_user_has_turned_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_of([load_service_config(CONFIG)])
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert environment_of(config, tmp_path, "random")["RAY_AUTH_MODE"] == "token"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert environment_of(config, tmp_path, "random")["RAY_AUTH_MODE"] == "disabled"
