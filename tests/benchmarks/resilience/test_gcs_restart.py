"""What the restart of the GCS measures, and what it needs to measure it."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.resilience.gcs_restart import Process, longest_gap_s, redis
from benchmarks.resilience.tally import Outcome, Request
from tests.support.waiting import wait_for

TIMES_S = st.lists(st.floats(0, 100), max_size=20)


def right(finished_s: float) -> Request:
    return Request(finished_s - 0.01, finished_s, Outcome.RIGHT, 200)


@given(TIMES_S, st.floats(0, 100))
def test_no_answer_comes_for_as_long_as_the_gap(times_s: list[float], from_s: float) -> None:
    """Each moment after the fault is within half the gap of an answer, or of an end."""
    gap_s = longest_gap_s([right(time_s) for time_s in times_s], from_s)
    until_s = max(times_s, default=from_s)
    known_s = [from_s, *(time_s for time_s in times_s if time_s > from_s)]
    if until_s > from_s:
        steps = [from_s + (until_s - from_s) * part / 50 for part in range(51)]
        far_s = max(min(abs(step - one) for one in known_s) for step in steps)
        assert far_s <= gap_s / 2 + 1e-9
    assert gap_s <= max(until_s - from_s, 0.0)


def test_only_right_answers_end_a_gap() -> None:
    refused = Request(4.9, 5.0, Outcome.REFUSED, 503)
    lost = Request(9.0, 12.0, Outcome.LOST)
    assert longest_gap_s([right(1.0), refused, right(8.0), lost], from_s=2.0) == 6.0
    # Nothing was right to the end.
    assert longest_gap_s([right(1.0), lost], from_s=2.0) == 10.0
    assert longest_gap_s([], from_s=2.0) == 0.0


def test_a_process_is_started_again_as_it_was(tmp_path: Path) -> None:
    written = tmp_path / "written"
    code = (
        "import os, pathlib, time; open('written', 'a').write(os.environ['WORD']); time.sleep(60)"
    )
    command = [sys.executable, "-c", code]
    first = subprocess.Popen(command, cwd=tmp_path, env={"WORD": "once "})
    processes = [first]
    try:
        assert wait_for(lambda: written.exists() and written.read_text() == "once ")
        again = Process.of(psutil.Process(first.pid))
        first.kill()
        processes.append(again.start())
        assert wait_for(lambda: written.read_text() == "once once ")
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_redis_asks_for_its_password() -> None:
    with redis() as environment:
        host, _, port = environment["RAY_REDIS_ADDRESS"].partition(":")

        def ask(*commands: str) -> bytes:
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                connection.sendall("".join(f"{command}\r\n" for command in commands).encode())
                connection.shutdown(socket.SHUT_WR)
                return b"".join(iter(lambda: connection.recv(1024), b""))

        assert ask("PING").startswith(b"-NOAUTH")
        assert ask(f"AUTH {environment['RAY_REDIS_PASSWORD']}", "PING") == b"+OK\r\n+PONG\r\n"
