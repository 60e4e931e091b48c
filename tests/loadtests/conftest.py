"""A real HTTP service under load, in its own process."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

START_TIMEOUT_S = 20


@pytest.fixture
def start_service(tmp_path):
    """Start the echo service of `tests/support` with options, and return its URL."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(**options):
        port_file = tmp_path / f"port{len(processes)}"
        script = Path(__file__).parents[1] / "support" / "loadtest_service.py"
        command = [sys.executable, script, port_file, json.dumps(options)]
        process = subprocess.Popen(command)
        processes.append(process)
        give_up_s = time.monotonic() + START_TIMEOUT_S
        while not port_file.exists():
            assert process.poll() is None, "the service ended"
            assert time.monotonic() < give_up_s, "the service does not start"
            time.sleep(0.02)
        return f"http://127.0.0.1:{port_file.read_text()}"

    yield start
    for process in processes:
        process.terminate()
        process.wait()
