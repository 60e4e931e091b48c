"""Replicas that die of a request, and replicas that are full, on a real Ray Serve."""

import json
import math
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.support.fragile_replica import POISON, SHAPE
from tests.support.services import load_document, serving, wait_for

pytestmark = pytest.mark.integration

REPLICAS = 3


def document(
    model: str = "SmallFragile", replicas: int = REPLICAS, **limits: object
) -> dict[str, Any]:
    content = load_document("digits.yaml")
    application = content["applications"][0]
    application["args"]["model"] |= {
        "name": "fragile",
        "import_path": f"tests.support.fragile_replica:{model}",
        "max_batch_size": 4,
    }
    (deployment,) = application["deployments"]
    del deployment["autoscaling_config"]
    deployment["num_replicas"] = replicas
    deployment["ray_actor_options"] = {"num_cpus": 0.2}
    deployment["user_config"]["sla"]["response_time_ms"] = 10_000
    deployment["user_config"]["limits"] = limits
    return content


def ask(url: str, first: float, shape: tuple[int, ...] = (4,)) -> tuple[int, dict[str, Any]]:
    """Send a request in one piece; return the status and the content of its answer."""
    host, _, port = url.removeprefix("http://").partition(":")
    data = [first] + [0.0] * (math.prod(shape) - 1)
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, *shape], "data": data}
    body = json.dumps({"inputs": [tensor]}, separators=(",", ":"))
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
        assert wait_for(lambda: service.servers_up() == REPLICAS, 60)
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


def test_large_bodies_survive_full_replicas(tmp_path: Path) -> None:
    """Images of 602 KB; a replica has room for two, and clients send no more than fit in all."""

    def is_right(first: float) -> bool:
        status, content = ask(service.url, first, SHAPE)
        mean = np.float32(first / math.prod(SHAPE))
        return status == 200 and content["outputs"][0]["data"] == [pytest.approx(mean)]

    def send_until(end_s: float, first: float) -> list[bool]:
        right: list[bool] = []
        while time.monotonic() < end_s:
            right.append(is_right(first + len(right)))
        return right

    limits: dict[str, object] = {"waiting_room": 1, "late": "serve", "batch_size_limit": 1}
    with (
        serving(tmp_path / "fragile.yaml", document("SlowFragile", 2, **limits)) as service,
        ThreadPoolExecutor(3) as pool,
    ):
        assert wait_for(lambda: service.servers_up() == 2, 60)
        # Three requests never fill both replicas, but often one of them.
        end_s = time.monotonic() + 3
        clients = [pool.submit(send_until, end_s, 1000.0 * number) for number in range(3)]
        sent = [right for client in clients for right in client.result()]
        assert sent.count(True) == len(sent) > 5
        assert wait_for(lambda: refused(service.url) > 0)


def refused(url: str) -> int:
    """Return how many requests the replica that is asked has refused."""
    rows = httpx.get(f"{url}/sojourn/policy").json()["rows"]
    return int(rows["refused"])
