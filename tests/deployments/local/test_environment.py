"""What a local run tells Ray: settings that close everything to others."""

from dataclasses import replace
from pathlib import Path

import pytest

from deployments.config.document import load_service_config
from deployments.errors import StartError
from deployments.haproxy.command import HAPROXY, HELD_MS, HTTP_HOST, RAYS_HAPROXY
from deployments.haproxy.routing import SUPERVISOR
from deployments.local.environment import environment_of
from deployments.local.run import run_of

CONFIG = Path(__file__).parents[3] / "configs/digits.yaml"


def test_the_supervisor_is_told_where_to_listen_and_who_always_has_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    monkeypatch.delenv(RAYS_HAPROXY, raising=False)
    run = replace(run_of([load_service_config(CONFIG)]), http_host="192.0.2.7")
    environment = environment_of(run, tmp_path, "random")
    assert environment[HTTP_HOST] == "192.0.2.7"
    assert environment[HELD_MS] == "http-digits=300"
    assert HAPROXY not in environment


@pytest.mark.parametrize(("own", "kept"), [("/opt/haproxy", True), (f"/opt/{SUPERVISOR}", False)])
def test_the_users_own_haproxy_is_supervised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, kept: bool
) -> None:
    monkeypatch.setenv(RAYS_HAPROXY, own)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    environment = environment_of(run_of([load_service_config(CONFIG)]), tmp_path, "random")
    assert Path(environment[RAYS_HAPROXY]).name == SUPERVISOR
    assert environment.get(HAPROXY) == (own if kept else None)


def test_without_the_supervisor_nothing_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.haproxy.routing.SUPERVISOR", "not-installed")
    with pytest.raises(StartError, match="is not installed beside this Python"):
        environment_of(run_of([load_service_config(CONFIG)]), tmp_path, "random")


def test_rays_token_is_on_unless_the_user_has_turned_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_of([load_service_config(CONFIG)])
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert environment_of(config, tmp_path, "random")["RAY_AUTH_MODE"] == "token"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert environment_of(config, tmp_path, "random")["RAY_AUTH_MODE"] == "disabled"
