"""Processes by their file descriptors."""

import signal
import subprocess
import sys
from pathlib import Path

from deployments.haproxy.process import Haproxy, open_parent_of
from tests.support.waiting import wait_for


def test_a_process_that_computes_wants_a_cpu_and_one_that_sleeps_or_has_ended_does_not() -> None:
    code = "import sys\nsys.stdin.read(1)\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        one = Haproxy(child.pid, Path("none.sock"))
        assert wait_for(lambda: not one.wants_cpu)
        child.stdin.write(b"x")
        child.stdin.flush()
        child.stdout.readline()
        assert wait_for(lambda: one.wants_cpu)
        child.send_signal(signal.SIGSTOP)
        assert wait_for(lambda: not one.wants_cpu)
        assert one.end(10) == 0
    assert not one.wants_cpu
    assert open_parent_of(child.pid) is None
