"""Serve's REST interface, as far as it can be tested without Ray."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from unittest import mock

import pytest

from deployments.errors import StartError
from deployments.local import serve_api
from deployments.local.serve_api import ServeApi, last_error


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(serve_api, "_POLL_S", 0.0)


@contextmanager
def dashboard(*answers: tuple[int, Any]) -> Iterator[tuple[ServeApi, list[Any]]]:
    """Serve `answers` one after the other, the last for ever; yield the bodies that came, too."""
    left, bodies = [*answers], []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"] or 0)))
            status, content = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(
                content if isinstance(content, bytes) else json.dumps(content).encode()
            )

        def do_PUT(self) -> None:
            self.do_GET()

        log_message = mock.Mock()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield ServeApi(f"http://127.0.0.1:{server.server_port}/"), bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def state(status: str, deployment: str, message: str = "", replicas: int = 2) -> dict[str, Any]:
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


def test_what_is_deployed_is_a_config() -> None:
    with dashboard((200, state("RUNNING", "HEALTHY"))) as (api, bodies):
        document = api.document()
        api.deploy(document)
    assert document["applications"] == [{"name": "a"}]
    assert json.loads(bodies[-1]) == document


def test_it_waits_until_every_replica_has_the_newest_version_or_one_fails() -> None:
    states = [
        state("DEPLOYING", "UPDATING"),
        state("RUNNING", "UPDATING"),
        state("RUNNING", "HEALTHY", replicas=3),
    ]
    with dashboard(*((200, one) for one in states)) as (api, _):
        assert api.wait_until_deployed(60) == states[-1]["applications"]
    with (
        dashboard((200, states[0])) as (api, _),
        pytest.raises(StartError, match="not all replicas serve after 0 s"),
    ):
        api.wait_until_deployed(0)
    failed = state("DEPLOY_FAILED", "UNHEALTHY", "Traceback:\nValueError: no weights")
    with (
        dashboard((200, failed)) as (api, _),
        pytest.raises(StartError, match="a did not start: no weights"),
    ):
        api.wait_until_deployed(60)


def test_a_refusal_or_no_dashboard_is_one_line() -> None:
    with (
        dashboard((400, b"Traceback\nRayServeConfigException: wrong port")) as (api, _),
        pytest.raises(StartError, match=r"Ray refused \(400\): wrong port"),
    ):
        api.deploy({})
    with pytest.raises(StartError, match="does not answer"):
        api.details()


def test_last_error_finds_the_line_that_names_the_error() -> None:
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
