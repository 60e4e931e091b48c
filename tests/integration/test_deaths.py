"""A request that kills the replica that computes it, on a real Ray Serve."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.fragile_replica import POISON
from tests.support.services import load_document, serving, wait_for

pytestmark = pytest.mark.integration

REPLICAS = 3


def document() -> dict[str, Any]:
    content = load_document("digits.yaml")
    application = content["applications"][0]
    application["args"]["model"] |= {
        "name": "fragile",
        "import_path": "tests.support.fragile_replica:SmallFragile",
        "max_batch_size": 4,
    }
    (deployment,) = application["deployments"]
    del deployment["autoscaling_config"]
    deployment["num_replicas"] = REPLICAS
    deployment["ray_actor_options"] = {"num_cpus": 0.2}
    deployment["user_config"]["sla"]["response_time_ms"] = 10_000
    return content


def ask(url: str, first: float) -> tuple[int, dict[str, Any]]:
    """Send a request in one piece; return the status and the content of its answer."""
    host, _, port = url.removeprefix("http://").partition(":")
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [first, 0, 0, 0]}
    body = json.dumps({"inputs": [tensor]})
    request = (
        f"POST /v2/models/fragile/infer HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    )
    with socket.create_connection((host, int(port.rstrip("/"))), timeout=60) as connection:
        connection.sendall(request.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(content)


def test_one_request_kills_two_replicas_at_most_and_harms_no_other(tmp_path: Path) -> None:
    with serving(tmp_path / "fragile.yaml", document()) as service:
        assert wait_for(lambda: len(service.replicas()) == REPLICAS, 60)
        assert wait_for(lambda: ask(service.url, 4.0)[0] == 200)
        before = set(service.replicas())
        with ThreadPoolExecutor(12) as pool:
            bystanders = [pool.submit(ask, service.url, float(4 * number)) for number in range(20)]
            status, content = pool.submit(ask, service.url, POISON).result()
        assert status == 500
        assert "it is not computed again" in content["error"]
        for number, bystander in enumerate(bystanders):
            status, content = bystander.result()
            assert (status, content["outputs"][0]["data"]) == (200, [float(number)])
        assert wait_for(lambda: len(before - set(service.replicas())) == 2, 10)
        # Replicas that start afterwards know of it, too.
        assert wait_for(lambda: len(service.replicas()) == REPLICAS, 60)
        alive = set(service.replicas())
        for _ in range(10):
            assert ask(service.url, POISON)[0] == 500
        assert set(service.replicas()) == alive
