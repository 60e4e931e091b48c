"""Replicas that die of a request, and replicas that are full, on a real Ray Serve."""

import json
import math
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.processes.fragile_replica import POISON, SHAPE, fragile_document
from tests.support.processes.services import Running, get
from tests.support.waiting import LIMIT_S, wait_for

pytestmark = pytest.mark.integration

REPLICAS = 3


def ask(url, first, shape=(4,)):
    """Send a request in one piece; return the status and the content of its answer."""
    host, _, port = url.removeprefix("http://").partition(":")
    data = [first] + [0.0] * (math.prod(shape) - 1)
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, *shape], "data": data}
    body = json.dumps({"inputs": [tensor]}, separators=(",", ":"))
    request = (
        f"POST /v2/models/fragile/infer HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    )
    with socket.create_connection((host, int(port.rstrip("/"))), timeout=LIMIT_S) as connection:
        connection.sendall(request.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(content)


def test_one_request_kills_two_replicas_at_most_and_harms_no_other(one_ray: Running):
    service = one_ray.serve_instead(fragile_document("SmallFragile", REPLICAS))
    assert wait_for(lambda: service.servers_up() == REPLICAS)
    before = set(service.replicas())
    with ThreadPoolExecutor(12) as pool:
        bystanders = [pool.submit(ask, service.url, float(4 * number)) for number in range(20)]
        status, content = pool.submit(ask, service.url, POISON).result()
    assert status == 500
    assert "it is not computed again" in content["error"]
    for number, bystander in enumerate(bystanders):
        status, content = bystander.result()
        assert (status, content["outputs"][0]["data"]) == (200, [float(number)])
    assert wait_for(lambda: len(before - set(service.replicas())) == 2)
    # Replicas that start afterwards know of it, too.
    assert wait_for(lambda: len(service.replicas()) == REPLICAS)
    alive = set(service.replicas())
    for _ in range(10):
        assert ask(service.url, POISON)[0] == 500
    assert set(service.replicas()) == alive
    # Whoever operates the service sees both, and why.
    assert wait_for(lambda: len(lost(service.url)) == 2)
    assert all("unexpectedly" in one["reason"] for one in lost(service.url))


def test_large_bodies_survive_full_replicas(one_ray: Running):
    """Images of 602 KB; a replica has room for two, and clients send no more than fit in all."""

    wrong, ended = list[object](), threading.Event()

    def send(first):
        sent = 0
        while not ended.is_set():
            status, content = ask(service.url, first + sent, SHAPE)
            mean = pytest.approx(np.float32((first + sent) / math.prod(SHAPE)))
            if status != 200 or content["outputs"][0]["data"] != [mean]:
                wrong.append((status, content))
            sent += 1
        return sent

    service = one_ray.serve_instead(
        fragile_document(
            *("SlowFragile", 2),
            late="serve",
            expert={"max_queue_rows": 1, "batch_size_limit": 1},
        )
    )
    assert wait_for(lambda: service.servers_up() == 2)
    with ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(send, 1000.0 * number) for number in range(3)]
        try:
            # Three requests never fill both replicas, but often one of them.
            assert wait_for(lambda: refused(service.url) > 0)
        finally:
            ended.set()
        assert sum(client.result() for client in clients) > 2
        assert wrong == []


def lost(url):
    return get(f"{url}/sojourn/autoscaler").json()["lost_replicas"]


def refused(url):
    """Return how many requests the replica that is asked has refused."""
    rows = get(f"{url}/sojourn/policy").json()["rows"]
    return int(rows["refused"])
