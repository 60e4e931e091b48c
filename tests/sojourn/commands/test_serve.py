import json
import os
import signal
import subprocess
from types import SimpleNamespace

import pytest

from deployments.config.user_config import AccessConfig
from deployments.local.run import LocalRun, ServedApplication
from deployments.local.service import LocalService
from policy.errors import InvalidInputError
from sojourn.cli import main
from sojourn.commands import serve

#: Echoes what it is sent, and knows the example, but only for the token.
CURL = """#!/bin/sh
case "$*" in
  *"Authorization: Bearer secret "*/sojourn/example) printf '%s' "$EXAMPLE" ;;
  *"Authorization: Bearer secret "*"/v2/models/m/infer -d @-") cat ;;
  *"Authorization: Bearer secret "*) for last; do :; done; printf '%s' "$last" ;;
  *) exit 22 ;;
esac
"""


@pytest.mark.parametrize("data", [["it's"], [*range(6000)]], ids=["short", "long"])
def test_the_curl_line_is_short_and_can_be_pasted(tmp_path, data):
    example = json.dumps({"inputs": [{"name": "x", "data": data}]})
    token = '-H "Authorization: Bearer $SOJOURN_TOKEN" '
    line = serve._curl("http://s", "m", example, token)
    assert len(line) < serve.MAX_EXAMPLE_LENGTH
    (tmp_path / "curl").write_text(CURL)
    (tmp_path / "curl").chmod(0o700)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "SOJOURN_TOKEN": "secret", "EXAMPLE": example}
    assert subprocess.check_output(line, shell=True, env=environment, text=True) == example


def test_a_service_that_cannot_be_asked_yet_is_summarized_all_the_same(monkeypatch, capsys):
    def ask(*_):
        raise InvalidInputError("not now")

    monkeypatch.setattr(serve, "ask", ask)
    running = LocalService(("http://s",), "http://d", "http://m", lambda: None)
    served = ServedApplication("a", "m", "", "99%", AccessConfig(), further_models=("n", "o"))
    summary = serve._summary(served, "http://s", running, 7.0)
    assert (summary["url"], summary["sla"], summary["start_s"]) == ("http://s", "99%", 7.0)
    serve._print_summary(summary)
    printed = capsys.readouterr().out
    assert "the policy is not known: not now" in printed
    assert "further models of its replicas: n, o\n" in printed


def test_signals_in_quick_succession_are_one_and_only_two_count(monkeypatch):
    interrupt, interrupted_s = serve.Interrupt(), []
    for now_s in (10.0, 10.5, 10.9, 11.1, 13.0, 20.0):
        monkeypatch.setattr(serve, "time", SimpleNamespace(monotonic=lambda now_s=now_s: now_s))
        try:
            interrupt(signal.SIGTERM, None)
        except KeyboardInterrupt:
            interrupted_s.append(now_s)
    assert interrupted_s == [10.0, 11.1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--load nowhere.yaml", "--load: add --check"),
        ("--environment --port 9000", "--port: --environment serves nothing; omit one"),
        ("--print-config --check m:M", "--check: --print-config serves nothing; omit one"),
        ("m:M --sla 50ms@95 --trust", "--trust: is for a joblib file, which 'm:M' is not"),
        ("m.onnx --sla 50ms@95 --trust", "--trust: is for a joblib file, which 'm.onnx' is not"),
    ],
)
def test_options_that_would_do_nothing(refused, options, said):
    assert said in refused("serve", *options.split())


def test_check_shows_the_sla_of_each_application_also_of_models_of_one_name(monkeypatch, as_json):
    applications = (
        ServedApplication("a", "m", "/a", "99%", AccessConfig()),
        ServedApplication("b", "m", "/b", "95%", AccessConfig()),
    )
    run = LocalRun("127.0.0.1", 8000, applications, {})
    monkeypatch.setattr(serve, "load_served_file", lambda *_, **__: run)
    assert as_json("serve", "--check", "two.yaml")["slas"] == {"a": "99%", "b": "95%"}


@pytest.mark.slow
def test_what_serves_nothing_prints_one_json_object(as_json, capsys):
    config = "configs/digits.yaml"
    environment = as_json("serve", "--environment", config)
    assert main(["serve", "--environment", config]) == 0
    exported = capsys.readouterr().out
    assert all(f"export {name}=" in exported for name in environment)
    printed = as_json("serve", "m:M", "--sla", "50ms@95", "--print-config")
    assert printed["applications"][0]["args"]["model"]["import_path"] == "m:M"
    checked = as_json("serve", "--check", config)
    assert checked["slas"] == {"digits": "99% of requests within 100 ms"}
    pipeline = as_json("pipeline", "serve", "--check", "configs/digits-pipeline.yaml")
    assert pipeline["steps"] == 3
