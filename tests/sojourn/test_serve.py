"""What `sojourn serve` shows of a running service; the rest needs Ray, or another module's test."""

import json
import os
import subprocess
import sys
import threading
import urllib.error
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from deployments.config.user_config import AccessConfig
from deployments.local.service import LocalService
from sojourn.commands import serve
from sojourn.output import program
from sojourn.served import Served

EXAMPLES = {
    "short": {"inputs": [{"name": "x", "data": ["it's"]}]},
    "long": {"inputs": [{"name": "x", "data": list(range(6000))}]},
}


class Echo(BaseHTTPRequestHandler):
    """Answers with an example at ``/sojourn/example``, and with the body it is sent elsewhere."""

    def do_GET(self) -> None:
        assert self.path.endswith("/sojourn/example")
        self._answer(json.dumps(EXAMPLES[self.path.split("/")[1]]).encode())

    def do_POST(self) -> None:
        assert self.path.endswith("/v2/models/m/infer")
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body: bytes) -> None:
        self.send_response(200 if self.headers["Authorization"] == "Bearer secret" else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_the_curl_line_is_short_and_can_be_pasted(url: str, name: str) -> None:
    example = json.dumps(EXAMPLES[name])
    token = '-f -H "Authorization: Bearer $SOJOURN_TOKEN" '
    line = serve._curl(f"{url}/{name}", "m", example, token)
    assert len(line) < serve.MAX_EXAMPLE_LENGTH
    pasted = subprocess.run(
        line,
        shell=True,
        env={**os.environ, "SOJOURN_TOKEN": "secret"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(pasted.stdout) == EXAMPLES[name]


@pytest.mark.parametrize("status", [401, 503])
def test_a_service_that_cannot_be_asked_yet_is_summarized_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    def get(url: str, _token: str | None) -> None:
        raise urllib.error.HTTPError(url, status, "not now", Message(), None)

    monkeypatch.setattr(serve, "get_json", get)
    running = LocalService(("http://s",), "http://d", "http://m", lambda: None)
    summary = serve._summary("m", "http://s", Served("99%", AccessConfig()), running, 7.0)
    assert (summary["url"], summary["sla"], summary["start_s"]) == ("http://s", "99%", 7.0)
    serve._print_summary(summary)
    assert f"HTTP Error {status}" in capsys.readouterr().out


def test_rays_serve_is_shown_as_the_shell_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = tmp_path / "env/bin"
    folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    assert program("serve") == str(folder / "serve")
    monkeypatch.chdir(tmp_path)
    assert program("serve") == "env/bin/serve"
    (tmp_path / "serve").write_text("#!/bin/sh\n")
    (tmp_path / "serve").chmod(0o700)
    assert program("serve") == "serve"
