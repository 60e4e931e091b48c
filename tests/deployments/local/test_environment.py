import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from deployments.config.document import load_service_configs
from deployments.errors import StartError
from deployments.haproxy.command import HAPROXY, HELD_MS, HTTP_HOST, RAYS_HAPROXY
from deployments.haproxy.request_environment import RequestTraits
from deployments.haproxy.routing import SUPERVISOR
from deployments.local.environment import environment_of, ray_access, ray_headers
from deployments.local.machine import ReservedPorts
from deployments.local.run import run_of

CONFIG = Path(__file__).parents[3] / "configs/digits.yaml"


@pytest.mark.parametrize(
    ("own", "supervised"),
    [("/opt/haproxy", "/opt/haproxy"), (f"/opt/{SUPERVISOR}", None), ("", None)],
)
def test_the_supervisor_is_told_where_to_listen_and_what_to_supervise(
    tmp_path, monkeypatch, own, supervised
):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    monkeypatch.setenv(RAYS_HAPROXY, own)
    run = replace(run_of(load_service_configs(CONFIG), [RequestTraits(256)]), http_host="192.0.2.7")
    with closing(ReservedPorts()) as ports:
        environment = environment_of(run, tmp_path, ports)
        assert environment[HTTP_HOST] == "192.0.2.7"
        assert environment[HELD_MS] == "http-digits=50"
        assert Path(environment[RAYS_HAPROXY]).name == SUPERVISOR
        assert environment.get(HAPROXY) == supervised
        monkeypatch.setattr("deployments.haproxy.routing.SUPERVISOR", "not-installed")
        with pytest.raises(StartError, match="is not installed beside this Python"):
            environment_of(run, tmp_path, ports)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_token_is_made_where_ray_looks_for_it(home):
    assert ray_access() == {"RAY_AUTH_MODE": "token"}
    path = home / ".ray/auth_token"
    token = path.read_text()
    assert (len(token), mode(path), mode(path.parent)) == (64, 0o600, 0o700)
    assert ray_headers() == {"Authorization": f"Bearer {token}"}
    assert path.read_text() == token


def test_a_token_that_others_may_read_is_closed_to_them(home):
    path = home / ".ray/auth_token"
    path.parent.mkdir()
    path.write_text("made by Ray\n")
    path.chmod(0o644)
    assert ray_headers() == {"Authorization": "Bearer made by Ray"}
    assert (path.read_text(), mode(path)) == ("made by Ray\n", 0o600)


@pytest.mark.parametrize(
    ("name", "value", "headers"),
    [
        ("RAY_AUTH_TOKEN", "mine", {"Authorization": "Bearer mine"}),
        ("RAY_AUTH_MODE", "disabled", {}),
    ],
)
def test_the_users_own_settings_are_used(home, monkeypatch, name, value, headers):
    monkeypatch.setenv(name, value)
    assert ray_headers() == headers
    assert not (home / ".ray").exists()


def test_a_token_that_cannot_be_written_is_reported_in_one_line(home, monkeypatch):
    (home / "file").write_text("")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "file/token"))
    with pytest.raises(StartError, match="set RAY_AUTH_TOKEN_PATH to another file"):
        ray_access()
