from copy import deepcopy
from typing import Any

import pytest

from deployments.config.document import IMPORT_PATH
from deployments.local.serve_api import ServeApi
from sojourn.cli import main
from sojourn.commands import deploy

RUNNING: dict[str, Any] = {
    "http_options": {"host": "127.0.0.1", "port": 1},
    "proxy_location": "EveryNode",
    "applications": [
        {
            "name": name,
            "route_prefix": f"/{name}",
            "import_path": IMPORT_PATH,
            "deployments": [{"name": "Replica", "user_config": {"limits": {"late": "serve"}}}],
        }
        for name in "ab"
    ],
}


@pytest.fixture
def deployed(monkeypatch):
    deployed: list[dict[str, Any]] = []
    # A pipeline's stages would be deployments of their own.
    state: dict[str, Any] = {"deployments": {"Replica": {"replicas": [{}]}}}
    monkeypatch.setattr(ServeApi, "document", lambda _: deepcopy(RUNNING))
    monkeypatch.setattr(ServeApi, "deploy", lambda _, document: deployed.append(document))
    monkeypatch.setattr(ServeApi, "wait_until_deployed", lambda *_: dict.fromkeys("ab", state))
    return deployed


def test_another_sla_changes_nothing_else(deployed, capsys):
    assert main(["deploy", "--sla", "50ms@95", "--application", "b"]) == 0
    wanted = deepcopy(RUNNING)
    sla = {"response_time_ms": 50, "percentile": 95}
    wanted["applications"][1]["deployments"][0]["user_config"]["sla"] = sla
    assert deployed == [wanted]
    assert "b: deployed, replicas: 1; what is in force is not known" in capsys.readouterr().out


def test_what_a_replica_rejects_is_said_and_is_an_error(deployed, monkeypatch, capsys):
    def ask(url, path, _):
        assert path == "/sojourn/policy"
        error = {"http://127.0.0.1:1/b": "sla: wrong"}.get(url)
        return {"sla_in_words": f"the SLA at {url}", "control_limit": 4, "config_error": error}

    monkeypatch.setattr(deploy, "ask", ask)
    assert main(["deploy", "--sla", "50ms@95", "--application", "b"]) == 1
    first, second = (f"the SLA at http://127.0.0.1:1/{name}" for name in "ab")
    assert capsys.readouterr().out.splitlines() == [
        f"a: {first} in force, control limit 4, replicas: 1",
        f"b: rejected: sla: wrong; {second} stay in force",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a config, or another SLA for what runs"),
        (["--sla", "50ms@95"], "--application: must be one of a, b"),
        (["--sla", "50ms@95", "--application", "c"], "must be one of a, b, not 'c'"),
        (["--sla", "0.1ms@95", "--application", "a"], "response_time_ms must be at least 0.5"),
        (["configs/digits.yaml", "--application", "a"], "--application: says what --sla is for"),
        (["--sla", "50ms@95", "-a", "nowhere"], "--address: must be like http://"),
    ],
)
def test_what_cannot_be_deployed_is_not(deployed, refused, arguments, message):
    assert message in refused("deploy", *arguments)
    assert deployed == []
