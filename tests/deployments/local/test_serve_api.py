import io
import json
from email.message import Message
from typing import Any
from urllib.error import HTTPError

import pytest

from deployments.errors import StartError
from deployments.local import serve_api
from deployments.local.serve_api import ServeApi, last_error


@pytest.fixture(autouse=True)
def without_ray(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(serve_api, "_POLL_S", 0.0)


def dashboard(monkeypatch, *answers):
    """Give `answers` one after the other, the last for ever; return the bodies that come, too."""
    left, bodies = [*answers], list[Any]()

    def urlopen(request, timeout):
        bodies.append(request.data)
        status, content = left.pop(0) if len(left) > 1 else left[0]
        if status != 200:
            raise HTTPError(request.full_url, status, "", Message(), io.BytesIO(content))
        return io.BytesIO(json.dumps(content).encode())

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    return ServeApi("http://ray/"), bodies


def state(status, deployment, message="", replicas=2):
    entry = {"status": deployment, "message": message, "replicas": [{}] * replicas}
    return {
        "proxy_location": "EveryNode",
        "http_options": {"port": 8000},
        "applications": {
            "a": {
                "status": status,
                "message": "",
                "deployed_app_config": {"name": "a"},
                "deployments": {"Replica": entry},
            }
        },
    }


def test_what_is_deployed_is_a_config(monkeypatch):
    api, bodies = dashboard(monkeypatch, (200, state("RUNNING", "HEALTHY")))
    document = api.document()
    api.deploy(document)
    assert document["applications"] == [{"name": "a"}]
    assert json.loads(bodies[-1]) == document


def test_it_waits_until_every_replica_has_the_newest_version_or_one_fails(monkeypatch):
    states = [
        state("DEPLOYING", "UPDATING"),
        state("RUNNING", "UPDATING"),
        state("RUNNING", "HEALTHY", replicas=3),
    ]
    api, _ = dashboard(monkeypatch, *((200, one) for one in states))
    assert api.wait_until_deployed(60) == states[-1]["applications"]
    api, _ = dashboard(monkeypatch, (200, states[0]))
    with pytest.raises(StartError, match="not all replicas serve after 0 s"):
        api.wait_until_deployed(0)
    failed = state("DEPLOY_FAILED", "UNHEALTHY", "Traceback:\nValueError: no weights")
    api, _ = dashboard(monkeypatch, (200, failed))
    with pytest.raises(StartError, match="a did not start: no weights"):
        api.wait_until_deployed(60)


def test_a_refusal_or_no_dashboard_is_one_line(monkeypatch):
    with pytest.raises(StartError, match="does not answer"):
        ServeApi("http://127.0.0.1:1").details()
    api, _ = dashboard(monkeypatch, (400, b"Traceback\nRayServeConfigException: wrong port"))
    with pytest.raises(StartError, match=r"Ray refused \(400\): wrong port"):
        api.deploy({})


def test_last_error_finds_the_line_that_names_the_error():
    message = (
        "The deployment failed to start 3 times in a row.\n\n"
        "ray::ServeReplica:a:Replica.initialize_and_get_metadata() (pid=1, ip=127.0.0.1)\n"
        '  File "/x/replica.py", line 1, in initialize\n'
        "RuntimeError: Traceback (most recent call last):\n"
        '  File "/x/base.py", line 2, in load_model\n'
        "policy.errors.InvalidInputError: model 'a': must be package.module:Class\n"
    )
    assert last_error([message]) == "model 'a': must be package.module:Class"
    assert last_error(["something else"]) == "something else"
    assert last_error([]) == "Ray gave no reason"
