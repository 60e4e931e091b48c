import io
import socket
import urllib.error
import urllib.request

import pytest

from loadtests.records import Outcome, Records
from loadtests.run import Finished
from sojourn.cli import main
from sojourn.commands import loadtest
from tests.support.http.canned_bytes import NO_ANSWERS, sending


def test_no_service_at_the_url(refused):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        line = refused("loadtest", "--url", url)
    assert url in line
    assert "sojourn serve" in line


@pytest.mark.parametrize("content", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_no_service_is_one_that_does_not_answer_in_http_to_the_end(refused, content):
    with sending(content) as url:
        assert f"no service answers at {url} (" in refused("loadtest", "--url", url)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--url 127.0.0.1:8000", "--url: must be like http://127.0.0.1:8000"),
        ("--arrival-rate -5", "'--arrival-rate': -5.0 is not in the range"),
        ("--arrival-rate 0.1 --duration-s 1", "load: no request becomes due with seed 0, 0.1 "),
        ("--duration-s 0", "'--duration-s': 0.0 is not in the range"),
        (
            "--arrival-rate 5 --shape 10s:5",
            "--arrival-rate: --shape has its own rates and durations",
        ),
        ("--shape spike", "'spike' is not DURATION:RATE"),
        ("--shape 10s:5 --duration-s 5", "--duration-s: --shape has its own rates and durations"),
        ("--min-right 101", "'--min-right': 101.0 is not in the range"),
        ("--max-refused -1", "'--max-refused': -1.0 is not in the range"),
        ("--speedup 2", "--speedup: needs --trace"),
        (f"--trace {__file__} --arrival-rate 5", "--arrival-rate: --trace has its own rates"),
        ("--connections 2 --workers 3", "--connections: 3 workers need at least as many"),
        ("--sla 100@99", "'--sla': must be like 50ms@95 or p95=50ms, not '100@99'"),
        ("--record", "--record needs --make-cases"),
        ("--make-cases 5 --arrival-rate 9", "--arrival-rate: has no effect with --make-cases"),
        ("--make-cases 5 --json", "--json: has no effect with --make-cases"),
    ],
)
def test_wrong_options(refused, options, complaint):
    assert complaint in refused("loadtest", *options.split())


def test_another_model_at_the_url_is_named(refused, monkeypatch):
    words = b"{\"error\": \"there is no model 'digits'; this service has 'tickets'\"}"

    def not_found(request, timeout):
        raise urllib.error.HTTPError(request.full_url, 404, "Not Found", None, io.BytesIO(words))

    monkeypatch.setattr(urllib.request, "urlopen", not_found)
    error = refused("loadtest", "--model", "digits")
    said = (
        "has no /v2/models/digits (there is no model 'digits'; this service has 'tickets'); --url"
    )
    assert said in error


def test_results_that_cannot_be_written_are_printed(capsys, as_json, monkeypatch, tmp_path):
    def run(url, schedule, *_):
        records = Records.begin(schedule.arrivals_s)
        records.outcome[:] = Outcome.ANSWERED
        records.sent_s[:] = records.finished_s[:] = records.scheduled_s
        return Finished(records, [], 0.0, 0.0)

    monkeypatch.setattr(loadtest, "run", run)
    monkeypatch.setattr(loadtest, "model_metadata", lambda *_: {"name": "digits"})
    monkeypatch.setattr(loadtest, "read_json", lambda *_: None)
    (tmp_path / "report.json").mkdir()
    command = ["loadtest", "--arrival-rate", "50", "--duration-s", "1", "--sla", "100ms@99"]
    assert main([*command, "--out", str(tmp_path)]) == 2
    out, said = capsys.readouterr()
    assert "requests" in out
    assert f"sojourn: {tmp_path}/report.json: Is a directory" in said
    assert as_json(*command)["sla_met"] is True
