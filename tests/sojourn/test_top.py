"""`sojourn top`: what it gathers from its polls, what it draws, and how it starts and ends."""

import contextlib
import json
import os
import pty
import select
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from rich.console import Console

from sojourn.cli import main
from sojourn.commands import top
from sojourn.commands.top import FORGET_AFTER_S, ServiceView, frame
from tests.support.http.canned_bytes import NO_ANSWERS, sending
from tests.support.ports import free_port
from tests.support.processes.services import ROOT
from tests.support.processes.watched_service import watched_service
from tests.support.waiting import LIMIT_S, wait_for

SLA = {"response_time_ms": 100, "percentile": 99}


def policy(replica="a", answered=0, late=0, failed=0, refused=0, **more):
    counts = {"completed": answered, "answered": answered, "late": late}
    counts["refused_queue_full"] = refused
    return {
        "model": "digits",
        "replica": replica,
        "sla": SLA,
        "sla_in_words": "99% of requests within 100 ms",
        "config_error": None,
        "queue_length": 3,
        "control_limit": 8,
        "bottleneck": "device",
        "measured_ms": {"50": 20.0, "95": 50.0, "99": 80.0},
        "predicted_ms": {"50": 22.0, "95": 55.0, "99": 90.0},
        "last_minute": {"seconds": 60.0, **counts, "refused": refused, "failed": failed},
        **more,
    }


def entry(time_s, before, after, reason="keep", **more):
    return {
        "time_s": time_s,
        "target_replicas": before,
        "replicas": after,
        "reason": reason,
        "arrival_rate_per_s": 100.0,
        "required_replicas": after,
        "demand_per_s": 130.0,
        "stuck_replicas": 0,
        **more,
    }


def decided(*entries):
    return {"dry_run": False, "newest": entries[-1] if entries else None, "decisions": entries}


def watched(*polls, decisions=()):
    """Return a snapshot after polls, each a time and one replica's answer."""
    answers = iter(polls)
    now_s = 0.0

    def ask(path):
        nonlocal now_s
        if path == "/sojourn/autoscaler":
            return decided(*decisions)
        now_s, document = next(answers)
        return document

    view = ServiceView("http://service", ask, lambda: now_s)
    for _ in polls:
        view.poll()
    return view.snapshot()


def drawn(snapshot, width=100):
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(frame(snapshot))
    return captured.get().splitlines()


def test_rates_are_those_of_all_replicas_in_the_last_minute():
    snapshot = watched(
        (0.0, policy("a", answered=50, late=1, refused=3)),
        (0.0, policy("b", answered=140, failed=10)),
    )
    assert snapshot["completed_per_s"] == pytest.approx(190 / 60)
    assert snapshot["refused_per_s"] == pytest.approx(3 / 60)
    assert snapshot["refused_per_s_by_reason"] == {"queue_full": pytest.approx(3 / 60)}
    assert snapshot["in_time"] == 1 - 11 / 200
    rates = [each["rates"]["completed"] for each in snapshot["replicas"]]
    assert rates == pytest.approx([50 / 60, 140 / 60])


def test_a_service_that_just_started_has_no_rates():
    snapshot = watched((0.0, policy(last_minute={"seconds": 0.0})))
    assert (snapshot["in_time"], snapshot["completed_per_s"]) == (None, None)


def test_a_replica_that_is_gone_is_forgotten():
    snapshot = watched((0.0, policy("a")), (FORGET_AFTER_S + 1, policy("b")))
    assert [each["replica"] for each in snapshot["replicas"]] == ["b"]


@pytest.mark.parametrize(("late", "failed", "status"), [(1, 0, 0), (2, 0, 1), (0, 2, 1), (1, 1, 1)])
def test_once_judges_the_last_minute_by_its_exit_status(monkeypatch, late, failed, status):
    document = policy(answered=100 - failed, late=late, failed=failed, refused=6)

    def ask(path):
        return decided() if path == "/sojourn/autoscaler" else document

    monkeypatch.setattr(top, "_asker", lambda *_: ask)
    assert main(["top", "--once"]) == status


def test_a_long_reason_is_shown_to_its_end():
    reason = "scale out: " + 30 * "demand " + "end"
    lines = drawn(watched((0.0, policy()), decisions=[entry(0.0, 2, 1, reason)]), width=60)
    assert lines[-1].split()[-1] == "end"


def test_a_frame_names_what_is_wrong():
    fine = watched((0.0, policy()), decisions=[entry(0.0, 2, 1, "less load")])
    assert "less load" in "\n".join(drawn(fine))
    assert drawn({**fine, "unreachable": "no service answers"})[0] == "no service answers"
    assert "config not applied: sla" in drawn({**fine, "config_error": "sla"})[0]
    stuck = watched((0.0, policy()), decisions=[entry(0.0, 2, 1, stuck_replicas=1)])
    assert any("1 stuck" in line for line in drawn(stuck))


def test_a_pipeline_shows_its_stages():
    stage = {"name": "resize", "busy": 1, "workers": 2, "queue_length": 5, "latency_ms": 7.5}
    document = policy(stages=[{**stage, "budget_ms": 30.0}])

    def ask(path):
        return decided() if path == "/sojourn/autoscaler" else document

    view = ServiceView("http://service", ask)
    view.poll()
    (line,) = (line for line in drawn(view.snapshot()) if "resize" in line)
    assert line.split() == ["resize", "1", "2", "5", "7.5", "30"]


@pytest.fixture(scope="module")
def service():
    decisions = decided(entry(time.time(), 1, 1, "keep 1; offered 2/s"))
    with watched_service(decisions) as url:
        body = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}
        stopped = threading.Event()

        def send() -> None:
            with httpx.Client() as client:
                while not stopped.is_set():
                    client.post(f"{url}/v2/models/m/infer", json=body)

        clients = [threading.Thread(target=send) for _ in range(2)]
        for client in clients:
            client.start()
        yield url
        stopped.set()
        for client in clients:
            client.join()


@pytest.mark.slow
def test_the_same_as_json(service, capsys):
    def snapshot_of():
        assert main(["top", "--url", f"{service}/", "--json"]) in (0, 1)
        return json.loads(capsys.readouterr().out)

    assert wait_for(lambda: (snapshot_of()["completed_per_s"] or 0) > 0)
    snapshot = snapshot_of()
    assert snapshot["model"] == "m"
    (replica,) = snapshot["replicas"]
    assert replica["control_limit"] >= 1
    assert replica["rates"]["completed"] == snapshot["completed_per_s"]
    assert 0 <= snapshot["in_time"] <= 1
    assert snapshot["decisions"][0]["reason"] == "keep 1; offered 2/s"


class Terminal:
    """`sojourn top` in a terminal of 80 by 24."""

    def __init__(self, url):
        self._ours, theirs = pty.openpty()
        environment = {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sojourn.cli", "top", "--url", url, "--interval-s", "0.2"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            # Ctrl-C goes to the processes whose terminal it is.
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
            env={**os.environ, **environment},
        )
        os.close(theirs)
        self.seen = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def wait_for(self, text):
        """Read until there is `text` that was not there before."""
        start = len(self.seen)
        while text not in self.seen[start:]:
            assert select.select([self._ours], [], [], LIMIT_S)[0], self.seen
            self.seen += os.read(self._ours, 65536)

    def press(self, key):
        """Press a key that ends the command; return its status."""
        os.write(self._ours, key)
        # It draws for ever if it does not notice the key.
        until_s = time.monotonic() + LIMIT_S
        while time.monotonic() < until_s and select.select([self._ours], [], [], LIMIT_S)[0]:
            try:
                self.seen += os.read(self._ours, 65536)
            except OSError:  # it has closed the terminal
                break
        return self._process.wait(LIMIT_S)


class Answers(BaseHTTPRequestHandler):
    """Answers as a replica does."""

    def do_GET(self):
        content = decided(entry(0.0, 1, 1)) if "autoscaler" in self.path else policy()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def answering(port):
    server = ThreadingHTTPServer(("127.0.0.1", port), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
def test_a_service_that_goes_away_is_shown_again_when_it_is_back():
    with contextlib.ExitStack() as stack:
        with answering(free_port()) as port:
            terminal = stack.enter_context(Terminal(f"http://127.0.0.1:{port}"))
            terminal.wait_for(b"digits at http")
        terminal.wait_for(b"no service answers at http")
        with answering(port):
            terminal.wait_for(b"digits at http")
            assert terminal.press(b"\x03") == 0
        # It leaves the alternate screen, shows the cursor, and says nothing of the interrupt.
        assert terminal.seen.rstrip().endswith((b"\x1b[?25h", b"\x1b[?1049l"))
        assert b"Traceback" not in terminal.seen


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--url", "127.0.0.1:8000"], "--url: must be like http://127.0.0.1:8000"),
        (["--url", "http://127.0.0.1:80a"], "--url: must be like http://127.0.0.1:8000"),
        (["--url", "http://[::1"], "--url: must be like http://127.0.0.1:8000"),
        (["--interval-s", "0"], "interval-s"),
        ([], "top needs a terminal; use --once or --json without one"),
        (["--once", "--url", "http://127.0.0.1:9"], "no service answers at http://127.0.0.1:9 ("),
        (["--token-file", "nowhere"], "nowhere"),
    ],
)
def test_a_user_error_is_one_line(arguments, complaint, capsys):
    assert main(["top", *arguments]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    (line,) = error.splitlines()
    assert complaint in line


@pytest.mark.parametrize("content", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_what_does_not_answer_in_http_to_the_end_is_one_line(content, capsys):
    with sending(content) as url:
        assert main(["top", "--once", "--url", url]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"sojourn: no service answers at {url} (")
