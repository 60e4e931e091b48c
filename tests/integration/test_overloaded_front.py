"""A fast model whose replica's event loop is the bottleneck: what the replica and clients see."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.closed_loop import closed_loop
from tests.support.readme import ROOT, blocks
from tests.support.services import free_port, load_document, serving, wait_for
from tests.support.wrk import wrk

pytestmark = pytest.mark.integration

CONNECTIONS = 1200
DURATION_S = 8
SLA_S = 0.1
INFER = "/v2/models/doubler/infer"
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """Return the folder of a module with the README's own model."""
    (module,) = (block for block in blocks("python") if "class Doubler" in block)
    (tmp_path / "doubler.py").write_text(module)
    return tmp_path


@pytest.fixture
def port(module: Path) -> Iterator[int]:
    """Serve the model behind the protocol of a replica."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.front_server", str(port)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{module}{os.pathsep}{ROOT}"},
    )
    try:
        assert wait_for(lambda: httpx.get(f"http://127.0.0.1:{port}/v2/health/ready"), 60)
        yield port
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


def test_the_replica_calls_late_what_its_clients_call_late(port: int) -> None:
    """More clients than the replica can answer in time, each with a request at any time."""
    seen = closed_loop("127.0.0.1", port, INFER, {"inputs": [TENSOR]}, CONNECTIONS, DURATION_S)
    rows = httpx.get(f"http://127.0.0.1:{port}/sojourn/policy").json()["rows"]
    answered = seen.response_times_s.get(200, [])
    late = sum(time_s > SLA_S for time_s in answered) + seen.count(504)
    client_share = late / (len(answered) + seen.count(504))
    replica_share = rows["late"] / (rows["completed"] + rows["expired"])
    assert len(answered) > 1000
    assert replica_share == pytest.approx(client_share, abs=0.05)


@pytest.mark.skipif(shutil.which("wrk") is None, reason="needs wrk")
def test_the_replica_calls_late_what_is_late_behind_haproxy(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``wrk -t1 -c1200`` on real Ray Serve, where requests also wait in HAProxy."""
    monkeypatch.setenv("PYTHONPATH", f"{module}{os.pathsep}{ROOT}")
    document = load_document("digits.yaml")
    (application,) = document["applications"]
    application["args"]["model"] = {"name": "doubler", "import_path": "doubler:Doubler"}
    (deployment,) = application["deployments"]
    del deployment["autoscaling_config"]
    deployment["num_replicas"] = 1
    deployment["user_config"]["sla"] = {"response_time_ms": 1e3 * SLA_S, "percentile": 99}
    body = json.dumps({"inputs": [TENSOR]})
    with serving(module / "doubler.yaml", document) as service:
        # In the first seconds all clients connect at once.
        wrk(service.url + INFER, body, CONNECTIONS, 4, module)
        before = httpx.get(f"{service.url}/sojourn/policy").json()["rows"]
        seen = wrk(service.url + INFER, body, CONNECTIONS, 20, module)
        after = httpx.get(f"{service.url}/sojourn/policy").json()["rows"]
    rows = {name: after[name] - before[name] for name in ("late", "completed", "expired")}
    replica_share = rows["late"] / (rows["completed"] + rows["expired"])
    assert seen.counts.sum() > 10_000
    assert seen.timeouts == 0
    assert replica_share == pytest.approx(seen.share_above(SLA_S), abs=0.05)
