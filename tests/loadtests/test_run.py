import json
import time

import pytest

from loadtests.schedule import Step, poisson_schedule
from sojourn.cli import main

pytestmark = pytest.mark.integration
#: Any machine keeps it.
SLA = {"response_time_ms": 5000, "percentile": 95}


@pytest.fixture
def loadtest(capfd):
    """Run `sojourn loadtest --json`; return its status, its report, and its stderr."""

    def run(url, *options):
        status = main(["loadtest", "--url", url, "--model", "echo", "--json", *options])
        out, said = capfd.readouterr()
        return status, json.loads(out), said

    return run


def test_a_sound_service_gets_a_clean_report(start_service, loadtest, tmp_path):
    url = start_service(delay_s=0.005, sla=SLA)
    options = ["--shape", "1s:50,1s:150", "--sla", "5s@95", "--out", str(tmp_path / "out")]
    status, report, said = loadtest(url, *options)
    assert status == 0
    assert report["requests"] == report["sent"] == report["ok"] > 100
    assert report["failed"] == {}
    assert report["wrong_answers"] == report["lost"] == 0
    assert report["sla"] == SLA
    assert report["response_percentiles_ms"]["50"] >= 5
    assert 20 < report["generator_cpu_us"] < 20_000
    assert [step["target_rate_per_s"] for step in report["by_step"]] == [50, 150]
    assert "95% of requests within 5000 ms" in said
    saved = {path.name for path in (tmp_path / "out").iterdir()}
    assert saved == {"report.html", "report.json", "seconds.csv"}
    page = (tmp_path / "out/report.html").read_text()
    assert "The SLA was met: 100% of" in page
    assert "--shape 1s:50,1s:150" in page
    assert json.loads((tmp_path / "out/report.json").read_text()) == report


def test_the_exit_status_tells_that_the_sla_was_not_met(start_service, loadtest, capfd):
    url = start_service(delay_s=0.005, sla=None)
    assert main(["loadtest", "--url", url, "--model", "echo"]) == 2
    assert "reports no SLA for 'echo'; give one with --sla" in capfd.readouterr().err
    options = ["--arrival-rate", "50", "--duration-s", "1", "--sla", "1ms@99"]
    status, report, said = loadtest(url, *options)
    assert status == 1
    assert report["sla_met"] is False
    assert "the SLA was not met" in said
    # No generator sends 99% of its requests within a tenth of a millisecond.
    assert "the load generator fell behind (1% of the requests left " in said
    assert report["generator_fell_behind"] is True


def test_random_requests_are_answered_and_recorded_ones_are_right(
    start_service, loadtest, capfd, tmp_path
):
    url = start_service(wrong=[30])
    makes = ["loadtest", "--url", url, "--model", "echo", "--make-cases", "20"]
    found = {}
    for name, options in (("random", []), ("recorded", ["--record"])):
        assert main([*makes, *options]) == 0
        cases = tmp_path / name
        cases.write_text(capfd.readouterr().out)
        load = ["--arrival-rate", "50", "--duration-s", "1", "--cases", str(cases)]
        found[name] = loadtest(url, *load)[1]
    assert found["random"]["ok"] == 0
    assert found["random"]["answered"] == found["random"]["requests"]
    recorded = found["recorded"]
    assert recorded["answered"] == 0
    # The thirtieth answer, which is wrong, is one of the load's or of those recorded.
    assert recorded["ok"] + recorded["wrong_answers"] == recorded["requests"]


def test_a_closed_service_gets_its_token(start_service, loadtest, tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("SOJOURN_TOKEN", raising=False)
    url = start_service(token="secret", sla=SLA)
    assert main(["loadtest", "--url", url, "--model", "echo"]) == 2
    assert "needs a token for inference" in capfd.readouterr().err
    (tmp_path / "token").write_text("secret\n")
    options = ("--arrival-rate", "50", "--duration-s", "1", "--token-file", str(tmp_path / "token"))
    status, report, said = loadtest(url, *options)
    assert status == 0
    assert report["ok"] == report["requests"] > 20
    assert "95% of requests within 5000 ms" in said


def test_every_fault_is_found(start_service, loadtest):
    url = start_service(wrong=[10, 11, 12], busy=[20, 21], drop=[30], mute=[40])
    options = ["--arrival-rate", "80", "--duration-s", "1", "--timeout-s", "5"]
    status, report, _ = loadtest(url, *options)
    assert status == 1
    examples = report["failure_examples"]
    kinds = [example["kind"] for example in examples]
    assert sorted(kinds) == ["503", "connection", "timeout", *3 * ["wrong"]]
    faults = {example["kind"]: example["fault"] for example in examples}
    assert faults["wrong"] == "output output: off by 1, more than 0.0001"
    assert faults["503"] == '{"error": "busy"}'
    assert all('"name":"input"' in example["request"] for example in examples)
    assert report["wrong_answers"] == 3
    assert report["failed"] == {"503": 2, "connection": 1, "timeout": 1}
    assert report["lost"] == 2
    assert report["ok"] == report["requests"] - 3 - 4


def test_several_workers_share_one_schedule(start_service, loadtest):
    """Their requests together are exactly those of one worker, and each fault is found once."""
    # The answers take so long that some are missing when the last request has been sent.
    url = start_service(wrong=[10], busy=[20, 21], delay_s=0.4)
    options = ["--arrival-rate", "80", "--duration-s", "1", "--workers", "2"]
    options += ["--connections", "16"]
    status, report, _ = loadtest(url, *options, "--min-right", "90", "--max-refused", "1")
    assert status == 1
    schedule = poisson_schedule([Step(1, 80)], 0)
    assert report["requests"] == report["sent"] == schedule.arrivals_s.size
    assert report["ok"] == report["requests"] - 3
    assert report["failed"] == {"503": 2}
    assert report["refused"] == 2
    assert sorted(example["kind"] for example in report["failure_examples"]) == ["503", "wrong"]
    assert [line.partition(":")[0] for line in report["missed"]] == ["refused"]


def test_stall_counts_for_every_request_due_in_it(start_service, loadtest):
    # With coordinated omission, only one request on each of the four connections would show it.
    url = start_service(stall=[50, 0.8])
    began_s = time.monotonic()
    status, report, _ = loadtest(
        url, "--arrival-rate", "100", "--duration-s", "2", "--connections", "4"
    )
    took_s = time.monotonic() - began_s
    assert status == 0
    assert report["ok"] == report["requests"]
    # About 80 requests are due in those 0.8 s, and wait 0.4 s on average.
    late = (1 - report["share_within_sla"]) * report["requests"]
    assert late >= 50
    assert 600 <= report["response_percentiles_ms"]["99"] <= 1e3 * took_s
    assert report["waited_for_connection"] >= 40
