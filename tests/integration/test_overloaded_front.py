"""A fast model whose replica's event loop is the bottleneck: what the replica and clients see."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.closed_loop import closed_loop
from tests.support.readme import ROOT, blocks
from tests.support.services import free_port, wait_for

pytestmark = pytest.mark.integration

CONNECTIONS = 1200
DURATION_S = 8
SLA_S = 0.1


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Serve the README's own model behind the protocol of a replica."""
    (module,) = (block for block in blocks("python") if "class Doubler" in block)
    (tmp_path / "doubler.py").write_text(module)
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.front_server", str(port)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )
    try:
        assert wait_for(lambda: httpx.get(f"http://127.0.0.1:{port}/v2/health/ready"), 60)
        yield port
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


def test_the_replica_calls_late_what_its_clients_call_late(port: int) -> None:
    """More clients than the replica can answer in time, each with a request at any time."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
    path = "/v2/models/doubler/infer"
    seen = closed_loop("127.0.0.1", port, path, {"inputs": [tensor]}, CONNECTIONS, DURATION_S)
    rows = httpx.get(f"http://127.0.0.1:{port}/sojourn/policy").json()["rows"]
    answered = seen.response_times_s.get(200, [])
    late = sum(time_s > SLA_S for time_s in answered) + seen.count(504)
    client_share = late / (len(answered) + seen.count(504))
    replica_share = rows["late"] / (rows["completed"] + rows["expired"])
    assert len(answered) > 1000
    assert replica_share == pytest.approx(client_share, abs=0.05)
