"""`sojourn top`: what it gathers from its polls, what it draws, and how it starts and ends."""

import contextlib
import http.client
import io
import itertools
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sojourn.cli import main
from sojourn.commands import top
from sojourn.commands.top_frame import frame, sparkline
from sojourn.commands.top_view import ServiceView, resampled
from tests.support.canned_bytes import NO_ANSWERS, sending
from tests.support.ports import free_port
from tests.support.services import ROOT
from tests.support.waiting import LIMIT_S, wait_for
from tests.support.watched_service import watched_service

SLA = {"response_time_ms": 100, "percentile": 99}


def policy(replica="a", answered=0, late=0, refused=0, energy_j=0.0, **more):
    return {
        "model": "digits",
        "replica": replica,
        "sla": SLA,
        "sla_in_words": "99% of requests within 100 ms",
        "config_error": None,
        "queue_length": 3,
        "control_limit": 8,
        "longest_wait_ms": 12.0,
        "bottleneck": "device",
        "front": {"utilization": 0.2},
        "measured_ms": {"50": 20.0, "95": 50.0, "99": 80.0},
        "predicted_ms": {"50": 22.0, "95": 55.0, "99": 90.0},
        "last_batches": [{"size": size} for size in (1, 4, 7)],
        "rows": {
            "offered": answered + refused,
            "refused": refused,
            "completed": answered,
            "answered": answered,
            "late": late,
            "deadline_missed": 0,
            "expired": 0,
        },
        "device": {"busy_s": 0.0, "energy_j": energy_j},
        **more,
    }


def entry(time_s, before, after, reason="keep", **more):
    known = {"arrival_rate_per_s": 100.0, "required_replicas": after, "demand_per_s": 130.0}
    return {
        "time_s": time_s,
        "target_replicas": before,
        "replicas": after,
        "reason": reason,
        "predicted_service_level": 0.995,
        "stuck_replicas": 0,
        **known,
        **more,
    }


def decided(*entries):
    return {"dry_run": False, "newest": entries[-1] if entries else None, "decisions": entries}


def watched(*polls, decisions=()):
    """Return the view after polls, each a time and a replica's answer."""
    view = ServiceView("http://service")
    view.add_autoscaler(decided(*decisions))
    for now_s, document in polls:
        view.add_policy(now_s, document)
    return view


def drawn(snapshot, width=80, height=24):
    console = Console(width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(frame(snapshot, width, height))
    return captured.get().splitlines()


def test_rates_are_differences_of_a_replicas_own_counters():
    view = watched(
        (0.0, policy("a", answered=1000, late=7)),
        (0.0, policy("b", answered=500, energy_j=10.0)),
        (2.0, policy("a", answered=1100, late=8, refused=4)),
        (2.0, policy("b", answered=600, energy_j=50.0)),
        decisions=[entry(0.0, 2, 2)],
    )
    snapshot = view.snapshot(2.0)
    assert snapshot["completed_per_s"] == 100
    assert snapshot["refused_per_s"] == 2
    assert snapshot["late_per_s"] == 0.5
    assert snapshot["power_w"] == 20
    assert snapshot["in_time"] == 1 - 1 / 200
    assert [each["completed_per_s"] for each in snapshot["replicas"]] == [50, 50]


def test_a_replica_that_started_again_counts_from_there():
    view = watched(
        (0.0, policy(answered=1000, late=900)),
        (1.0, policy(answered=10)),
        (2.0, policy(answered=30)),
    )
    assert view.snapshot(2.0)["completed_per_s"] == 20
    assert view.snapshot(2.0)["in_time"] == 1


def test_a_replica_that_is_gone_is_forgotten_and_a_rare_one_is_not():
    few = watched((0.0, policy("a")), (16.0, policy("b")), decisions=[entry(0.0, 2, 2)])
    assert [each["replica"] for each in few.snapshot(16.0)["replicas"]] == ["b"]
    many = watched((0.0, policy("a")), (16.0, policy("b")), decisions=[entry(0.0, 80, 80)])
    assert len(many.snapshot(16.0)["replicas"]) == 2
    assert (few.polls, many.polls) == (2, 8)


@given(st.lists(st.tuples(st.floats(0.01, 5), st.integers(0, 50), st.floats(0, 1)), min_size=1))
def test_the_share_in_time_is_that_of_what_was_answered_between_the_polls(steps):
    now_s, answered, late = 0.0, 100, 50
    view = watched((now_s, policy(answered=answered, late=late)))
    polls = [(now_s, answered, late)]
    for pause_s, more, share in steps:
        now_s, answered, late = now_s + pause_s, answered + more, late + int(share * more)
        view.add_policy(now_s, policy(answered=answered, late=late))
        polls.append((now_s, answered, late))
    _, before, late_before = next(poll for poll in polls if poll[0] >= now_s - 60)
    expected = 1 - (late - late_before) / (answered - before) if answered > before else None
    assert view.snapshot(now_s)["in_time"] == (expected and pytest.approx(expected)) or not expected
    rate = view.snapshot(now_s)["completed_per_s"]
    assert rate >= 0


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=50), st.integers(8, 40))
def test_the_line_of_the_load_has_one_bar_for_each_part(loads, columns):
    points = [[10.0 * number, load] for number, load in enumerate(loads)]
    parts = list(resampled(points, columns))
    assert len(parts) == columns
    assert max(parts) <= max(loads) * (1 + 1e-9)
    assert len(sparkline(parts)) == columns
    assert "█" in sparkline(parts)


def test_the_load_holds_its_last_value_between_decisions():
    assert list(resampled([[0.0, 5.0], [600.0, 8.0]], 4)) == [5.0, 5.0, 5.0, 8.0]
    assert list(resampled([[300.0, 5.0], [600.0, 8.0]], 4)) == [0.0, 5.0, 5.0, 8.0]
    assert list(resampled([], 4)) == []


@pytest.mark.parametrize("replicas", [1, 3, 40])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (132, 50)])
def test_a_frame_fits_the_terminal(replicas, width, height):
    reasons = [entry(float(n), n, n + 1, f"scale out {n}: " + "long " * 40) for n in range(30)]
    names = [f"replica{number:03}" for number in range(replicas)]
    polls = [
        (now_s, policy(name, answered=100_000 * int(now_s), late=7777 * int(now_s), energy_j=1e3))
        for now_s in (0.0, 1.0)
        for name in names
    ]
    lines = drawn(watched(*polls, decisions=reasons).snapshot(1.0), width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    assert "99% of requests within 100 ms" in text
    assert re.search(r"p99 80/90 ", text)
    assert text.count("scale out") >= 2
    shown = len(re.findall(r"^replica\d", text, re.MULTILINE))
    assert shown == replicas or f"and {replicas - shown} more" in text


def test_a_frame_tells_what_is_wrong():
    stuck = entry(5.0, 2, 3, "scale out 2 -> 3", stuck_replicas=1)
    view = watched(
        (0.0, policy(answered=0)), (1.0, policy(answered=100, late=5)), decisions=[stuck]
    )
    text = "\n".join(drawn(view.snapshot(1.0)))
    assert "in time 95.00% in 1 min, burn rate 5" in text
    assert "3 ordered, 3 needed" in text
    assert "1 stuck" in text
    assert "2 → 3  scale out 2 -> 3" in text
    view.add_failure(3.0, "connection refused")
    view.add_failure(4.0, "connection refused")
    assert drawn(view.snapshot(10.0))[0] == "7 s: connection refused"
    view.add_policy(11.0, policy(answered=200, config_error="sla: wrong"))
    assert drawn(view.snapshot(11.0))[0] == "config not applied: sla: wrong"


def pipeline(completed, replica=None, workers=2, batches=10, size=1.5, expected_ms=10.0):
    stage = {"busy": 1, "workers": workers, "queue_length": 4, "latency_ms": 3.0, "budget_ms": 40.0}
    requests = dict.fromkeys(("refused", "late", "failed", "cancelled"), 0)
    return {
        "name": "cat",
        "replica": replica,
        "bottleneck": "encode" if expected_ms > 5 else "decode",
        "expected_ms": expected_ms,
        "requests": requests | {"completed": completed},
        "stages": [
            {"name": name, "batches": batches, "mean_batch_size": size, **stage}
            for name in ("decode", "encode")
        ],
    }


CAT = {"model": "cat", "sla": SLA, "sla_in_words": "99% within 100 ms", "stages": {}}


def test_a_pipeline_shows_its_stages():
    view = ServiceView("http://service")
    view.add_policy(0.0, CAT, pipeline(0))
    view.add_policy(2.0, CAT, pipeline(60))
    snapshot = view.snapshot(2.0)
    assert snapshot["completed_per_s"] == 30
    lines = drawn(snapshot)
    assert any(re.match(r"encode +1/2 +4 +1.5 +3 +40 +bottleneck", line) for line in lines)
    assert any(re.match(r"decode +1/2 +4 +1.5 +3 +40 *$", line) for line in lines)


def test_answers_that_are_counted_late_do_not_make_the_share_negative():
    view = ServiceView("http://service")
    view.add_policy(0.0, policy(answered=0, late=0))
    view.add_policy(1.0, policy(answered=60, late=70))
    assert view.snapshot(1.0)["in_time"] == 0


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_stages_are_those_of_all_replicas_whichever_answered_last(order):
    said = {
        "a": pipeline(0, "a", workers=3, batches=30, size=2.0, expected_ms=20.0),
        "b": pipeline(0, "b", workers=1, batches=10, size=6.0, expected_ms=2.0),
    }
    view = ServiceView("http://service")
    for name in order:
        view.add_policy(0.0, {**CAT, "config_error": "late: " if name == "a" else None}, said[name])
    snapshot = view.snapshot(0.0)
    lines = drawn(snapshot)
    assert any(re.match(r"encode +2/4 +8 +3 +3 +40 +bottleneck", line) for line in lines)
    assert snapshot["config_error"] == "late: "


def test_one_frame_reaches_replicas_that_answer_seldom(capsys):
    """A balancer sends one question in four to the second of two replicas."""
    asked = itertools.count()

    class Balancer(BaseHTTPRequestHandler):
        def do_GET(self):
            content = decided(entry(0.0, 2, 2))
            if self.path == "/sojourn/policy":
                number = next(asked)
                content = policy("b" if number % 4 == 3 else "a", answered=10 * number)
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Balancer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert main(["top", "--url", url, "--json", "--interval-s", "0.1"]) == 0
        server.shutdown()
        thread.join()
    replicas = json.loads(capsys.readouterr().out)["replicas"]
    assert [each["replica"] for each in replicas] == ["a", "b"]
    assert all(each["completed_per_s"] > 0 for each in replicas)


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
def test_one_frame_of_a_real_service(service, capsys):
    assert main(["top", "--url", service, "--once", "--interval-s", "0.1"]) == 0
    out = capsys.readouterr().out
    assert "SLA      99% of requests within 100 ms" in out
    assert "keep 1; offered 2/s" in out


@pytest.mark.slow
def test_the_same_as_json(service, capsys):
    assert main(["top", "--url", f"{service}/", "--json", "--interval-s", "1"]) == 0
    snapshot = json.loads(capsys.readouterr().out)
    assert snapshot["model"] == "m"
    (replica,) = snapshot["replicas"]
    assert replica["control_limit"] >= 1
    assert replica["completed_per_s"] == snapshot["completed_per_s"] > 0
    assert 0 < replica["device_utilization"] < 1
    # The profile tells the energy of batches.
    assert snapshot["power_w"] > 0
    assert 0 <= snapshot["in_time"] <= 1
    assert sum(snapshot["batch_sizes"].values()) > 0
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


@pytest.mark.slow
@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_it_draws_in_a_terminal_until_q_or_ctrl_c(service, key):
    with Terminal(service) as terminal:
        terminal.wait_for(b"keep 1; offered 2/s")
        assert terminal.press(key) == 0
        # It leaves the alternate screen, shows the cursor, and says nothing of the interrupt.
        assert terminal.seen.rstrip().endswith((b"\x1b[?25h", b"\x1b[?1049l"))
        assert b"Traceback" not in terminal.seen


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
        terminal.wait_for(b"s: no service answers at http")
        with answering(port):
            terminal.wait_for(b"digits at http")
            assert terminal.press(b"q") == 0


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


def test_polls_go_on_after_whatever_failed(monkeypatch):
    """A screen without them would show old numbers for good."""
    polls = itertools.count(1)
    asked = []

    def ask(path):
        asked.append(path)
        if next(polls) % 2:
            raise http.client.IncompleteRead(b"{", 100)
        return {}

    def key(_):
        wait_for(lambda: len(asked) > 6)
        return "q"

    monkeypatch.setattr(top, "_key", key)
    view = ServiceView("http://service")
    top._watch(Console(file=io.StringIO(), force_terminal=True), view, ask, 0.001)
    assert len(asked) > 6
