"""User errors print one line and exit with status 2, before any load is sent."""

import io
import json
import socket
import urllib.error
import urllib.request

import pytest

from loadtests.records import Outcome, Records
from loadtests.run import Finished
from sojourn.cli import main
from sojourn.commands import loadtest
from tests.support.http.canned_bytes import NO_ANSWERS, sending


@pytest.fixture
def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        yield taken.getsockname()[1]


def refused(capsys, *arguments):
    assert main(["loadtest", *arguments]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    (line,) = error.splitlines()
    return line


def test_no_service_at_the_url(capsys, closed_port):
    url = f"http://127.0.0.1:{closed_port}"
    line = refused(capsys, "--url", url)
    assert url in line
    assert "sojourn serve" in line


@pytest.mark.parametrize("content", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_no_service_is_one_that_does_not_answer_in_http_to_the_end(capsys, content):
    with sending(content) as url:
        assert f"no service answers at {url} (" in refused(capsys, "--url", url)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--url", "127.0.0.1:8000"], "http://127.0.0.1:8000"),
        (["--url", "http://127.0.0.1:80a"], "--url: must be like http://127.0.0.1:8000"),
        (["--url", "http://[::1"], "--url: must be like http://127.0.0.1:8000"),
        (["--arrival-rate", "-5"], "arrival rate"),
        (["--arrival-rate", "0"], "above 0"),
        (
            ["--arrival-rate", "0.1", "--duration-s", "1"],
            "load: no request becomes due with seed 0, 0.1 ",
        ),
        (["--duration-s", "0"], "duration"),
        (["--arrival-rate", "5", "--shape", "10s:5"], "--shape has its own rates"),
        (["--shape", "spike"], "'spike' is not DURATION:RATE"),
        (["--min-right", "101"], "--min-right: must be from 0 to 100"),
        (["--max-refused", "-1"], "--max-refused: must be from 0 to 100"),
        (["--workers", "0"], "--workers"),
        (["--shape", "10s"], "DURATION:RATE"),
        (["--shape", "10s:5", "--duration-s", "5"], "rates and durations"),
        (["--speedup", "2"], "--trace"),
        (["--timeout-s", "0"], "timeout"),
        (["--trace", "nowhere.csv"], "nowhere.csv"),
        (["--trace", __file__, "--arrival-rate", "5"], "--trace has its own rates"),
        (["--connections", "0"], "connections"),
        (
            ["--connections", "2", "--workers", "3"],
            "--connections: 3 workers need at least as many",
        ),
        (["--sla", "100@99"], "'--sla': must be like 50ms@95 or p95=50ms, not '100@99'"),
        (["--sla", "1.2.3ms@99"], "'--sla': must be like 50ms@95"),
        (["--sla", "100ms@0.99"], "'--sla': percentile: is in percent; write 99 for 99%"),
        (["--sla", "0ms@99"], "'--sla': response time: must be above 0 ms, not 0"),
        (["--record"], "--record needs --make-cases"),
    ],
)
def test_wrong_options(capsys, options, complaint):
    assert complaint in refused(capsys, *options)


def test_another_model_at_the_url_is_named(capsys, monkeypatch):
    words = b"{\"error\": \"there is no model 'digits'; this service has 'tickets'\"}"

    def not_found(request, timeout):
        raise urllib.error.HTTPError(request.full_url, 404, "Not Found", None, io.BytesIO(words))

    monkeypatch.setattr(urllib.request, "urlopen", not_found)
    error = refused(capsys, "--url", "http://127.0.0.1:8000")
    assert "has no model 'digits' (there is no model 'digits'; this service has 'tickets')" in error
    assert "--model names it" in error


def test_results_that_cannot_be_written_are_printed(capsys, monkeypatch, tmp_path):
    def run(url, schedule, *_):
        records = Records.begin(schedule.arrivals_s)
        records.outcome[:] = Outcome.ANSWERED
        records.sent_s[:] = records.finished_s[:] = records.scheduled_s
        return Finished(records, [], 0.0, 0.0)

    monkeypatch.setattr(loadtest, "run", run)
    monkeypatch.setattr(loadtest, "model_metadata", lambda *_: {})
    monkeypatch.setattr(loadtest, "read_json", lambda *_: None)
    (tmp_path / "report.json").mkdir()
    options = [
        "--arrival-rate",
        "50",
        "--duration-s",
        "1",
        "--sla",
        "100ms@99",
        "--out",
        str(tmp_path),
    ]
    assert main(["loadtest", *options]) == 2
    out, said = capsys.readouterr()
    assert "requests" in out
    assert f"sojourn: --out: cannot write to {tmp_path}: Is a directory" in said
    assert main(["loadtest", *options[:-2], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sla_met"] is True
