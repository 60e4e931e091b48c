"""CPU time is counted by part of the server."""

import subprocess
import sys

import pytest

from benchmarks.peers.machine import machine_use

#: Burns CPU time in a child process, which counts as the server's, too; then waits.
SERVER = r"""
import subprocess, sys
burn = "import time\nwhile time.process_time() < 0.3: pass\nprint('burned', flush=True); input()"
child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE)
input()
"""


def test_the_cpu_time_of_a_servers_processes_is_counted() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        with machine_use(server.pid) as used:
            assert server.stdout.readline() == b"burned\n"
        server.stdin.close()
    assert set(used.server_cpu_s) == {"rest"}
    assert used.server_cpu_s["rest"] >= 0.25
    assert used.server_cpu_us(1000)["rest"] == pytest.approx(1e3 * used.server_cpu_s["rest"])
    assert used.server_cpu_us(0) == {}
