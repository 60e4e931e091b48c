"""A fast model whose replica's event loop is the bottleneck: what the replica and clients see."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.haproxy.lone import haproxy
from tests.support.ports import free_port
from tests.support.processes.closed_loop import closed_loop
from tests.support.processes.services import get
from tests.support.processes.wrk import wrk
from tests.support.readme import ROOT, blocks
from tests.support.waiting import LIMIT_S, wait_for

pytestmark = pytest.mark.integration
needs_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="needs wrk")

CONNECTIONS = 1200
MEASUREMENTS = 8
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


@contextmanager
def front_server(module: Path, port: int, *arguments: str) -> Iterator[None]:
    """Serve the model behind the protocol of a replica."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.processes.front_server", str(port), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{module}{os.pathsep}{ROOT}"},
    )
    try:
        assert wait_for(lambda: get(f"http://127.0.0.1:{port}/v2/health/ready"))
        yield
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(LIMIT_S)


def rows_of(url: str) -> dict[str, int]:
    rows: dict[str, int] = get(f"{url}/sojourn/policy").json()["rows"]
    return rows


def check_with_wrk(url: str, replica_url: str, folder: Path) -> None:
    """Check that wrk's clients and the replica find as many requests late.

    wrk does not tell refusals from answers. Those that left just in time reach its clients late, so
    the clients' share is between that without any refusal and that with all of them, by the
    replica's count. A measurement that another program on this machine disturbs is taken again.
    """
    body = json.dumps({"inputs": [TENSOR]})
    # In the first seconds all clients connect at once.
    wrk(url + INFER, body, CONNECTIONS, 4, folder)
    found = []
    for _ in range(MEASUREMENTS):
        before = rows_of(replica_url)
        seen = wrk(url + INFER, body, CONNECTIONS, 12, folder)
        after = rows_of(replica_url)
        late, completed, expired, refused = (
            after[name] - before[name] for name in ("late", "completed", "expired", "refused")
        )
        total = completed + expired + refused
        share = seen.share_above(SLA_S)
        found.append((seen.counts.sum(), seen.timeouts, late / total, share, refused / total))
        is_enough = seen.counts.sum() > 2 * CONNECTIONS and not seen.timeouts
        if is_enough and late / total - 0.05 <= share <= (late + refused) / total + 0.05:
            return
    pytest.fail(f"answers, timeouts, late by the replica, by its clients, and refused: {found}")


def test_the_replica_calls_late_what_its_clients_call_late(module: Path) -> None:
    """More clients than the replica can answer in time, each with a request at any time.

    What clients wait for their own CPU no replica sees, so a measurement that another program on
    this machine disturbs is taken again.
    """
    port, content, found = free_port(), {"inputs": [TENSOR]}, []
    url = f"http://127.0.0.1:{port}"
    with front_server(module, port):
        for _ in range(MEASUREMENTS):
            before = rows_of(url)
            seen = closed_loop("127.0.0.1", port, INFER, content, CONNECTIONS, DURATION_S)
            after = rows_of(url)
            rows = {name: after[name] - before[name] for name in after}
            answered = seen.response_times_s.get(200, [])
            late = sum(time_s > SLA_S for time_s in answered) + seen.count(504)
            client_share = late / (len(answered) + seen.count(504))
            replica_share = rows["late"] / (rows["completed"] + rows["expired"])
            found.append((len(answered), client_share, replica_share))
            if len(answered) > 1000 and abs(replica_share - client_share) <= 0.05:
                return
    pytest.fail(f"answers, late by the clients, and by the replica: {found}")


@needs_wrk
def test_the_replica_calls_late_what_waits_in_haproxy(module: Path, tmp_path: Path) -> None:
    """``wrk -t1 -c1200``, HAProxy and a replica on the same cores, without Ray."""
    port, balancer_port, socket = free_port(), free_port(), tmp_path / "admin.sock"
    with (
        front_server(module, port, str(socket)),
        haproxy(balancer_port, {"a-front": port}, socket),
    ):
        url = f"http://127.0.0.1:{balancer_port}"
        check_with_wrk(url, f"http://127.0.0.1:{port}", tmp_path)
