"""Processes by their file descriptors."""

import os
import signal
import subprocess
import sys

from deployments.haproxy.processes import ended, open_parent_of


def test_the_end_of_a_process_is_seen_by_its_descriptor() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(child.pid)
    assert not ended(pidfd)
    child.send_signal(signal.SIGKILL)
    assert ended(pidfd, 10)
    child.wait()
    assert child.stdin is not None
    child.stdin.close()
    os.close(pidfd)
    assert open_parent_of(child.pid) is None
