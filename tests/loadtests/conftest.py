"""A real HTTP service under load, in its own process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_for


@pytest.fixture
def start_service(tmp_path):
    """Start the echo service of `tests/support` with options, and return its URL."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(**options):
        port_file = tmp_path / f"port{len(processes)}"
        script = Path(__file__).parents[1] / "support/processes/loadtest_service.py"
        command = [sys.executable, script, port_file, json.dumps(options)]
        process = subprocess.Popen(command)
        processes.append(process)
        assert wait_for(lambda: port_file.exists() or process.poll() is not None)
        assert process.poll() is None, "the service ended"
        return f"http://127.0.0.1:{port_file.read_text()}"

    yield start
    for process in processes:
        process.terminate()
        process.wait()
