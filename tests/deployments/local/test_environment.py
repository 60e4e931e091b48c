"""The settings of a local run's Ray, which close everything to others."""

import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from deployments.config.document import load_service_config
from deployments.errors import StartError
from deployments.haproxy.command import HAPROXY, HELD_MS, HTTP_HOST, RAYS_HAPROXY
from deployments.haproxy.routing import SUPERVISOR
from deployments.local.environment import environment_of, ray_access, ray_headers
from deployments.local.machine import ReservedPorts
from deployments.local.run import run_of

CONFIG = Path(__file__).parents[3] / "configs/digits.yaml"


@pytest.fixture
def ports() -> Iterator[ReservedPorts]:
    with closing(ReservedPorts()) as ports:
        yield ports


def test_the_supervisor_is_told_where_to_listen_and_who_always_has_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ports: ReservedPorts
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    monkeypatch.delenv(RAYS_HAPROXY, raising=False)
    run = replace(run_of([load_service_config(CONFIG)]), http_host="192.0.2.7")
    environment = environment_of(run, tmp_path, "random", ports)
    assert environment[HTTP_HOST] == "192.0.2.7"
    assert environment[HELD_MS] == "http-digits=300"
    assert HAPROXY not in environment


@pytest.mark.parametrize(("own", "kept"), [("/opt/haproxy", True), (f"/opt/{SUPERVISOR}", False)])
def test_the_users_own_haproxy_is_supervised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ports: ReservedPorts, own: str, kept: bool
) -> None:
    monkeypatch.setenv(RAYS_HAPROXY, own)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    environment = environment_of(run_of([load_service_config(CONFIG)]), tmp_path, "random", ports)
    assert Path(environment[RAYS_HAPROXY]).name == SUPERVISOR
    assert environment.get(HAPROXY) == (own if kept else None)


def test_without_the_supervisor_nothing_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ports: ReservedPorts
) -> None:
    monkeypatch.setattr("deployments.haproxy.routing.SUPERVISOR", "not-installed")
    with pytest.raises(StartError, match="is not installed beside this Python"):
        environment_of(run_of([load_service_config(CONFIG)]), tmp_path, "random", ports)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `tmp_path` the user's home, with none of Ray's settings."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_token_is_made_where_ray_looks_for_it(home: Path) -> None:
    assert ray_access() == {"RAY_AUTH_MODE": "token"}
    path = home / ".ray/auth_token"
    token = path.read_text()
    assert (len(token), mode(path), mode(path.parent)) == (64, 0o600, 0o700)
    assert ray_headers() == {"Authorization": f"Bearer {token}"}
    assert path.read_text() == token


def test_a_token_that_others_may_read_is_closed_to_them(home: Path) -> None:
    path = home / ".ray/auth_token"
    path.parent.mkdir()
    path.write_text("made by Ray\n")
    path.chmod(0o644)
    assert ray_headers() == {"Authorization": "Bearer made by Ray"}
    assert (path.read_text(), mode(path)) == ("made by Ray\n", 0o600)


def test_the_users_own_token_is_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    assert ray_headers() == {"Authorization": "Bearer mine"}
    assert not (home / ".ray").exists()


def test_no_token_is_sent_where_the_user_has_turned_it_off(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert ray_headers() == {}
    assert not (home / ".ray").exists()


def test_a_token_that_cannot_be_written_is_reported_in_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "file/token"))
    with pytest.raises(StartError, match="set RAY_AUTH_TOKEN_PATH to another file"):
        ray_access()
