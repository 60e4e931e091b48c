"""Replicas that stop under load: scaled in, and replaced by a new version."""

import threading
import time
from collections import Counter
from contextlib import contextmanager

import httpx
import pytest

from tests.support.processes.services import Running, get, load_document, serving_late
from tests.support.waiting import LIMIT_S, wait_for

pytestmark = pytest.mark.integration

NAME = "drained"
PERIOD_S = 0.025


def document(replicas, version):
    content = serving_late(load_document("emulated-p4.yaml"))
    application = content["applications"][0]
    application["name"] = NAME
    application["args"]["model"]["version"] = version
    (deployment,) = application["deployments"]
    del deployment["autoscaling_config"]
    deployment["num_replicas"] = replicas
    return content


@contextmanager
def load(service: Running):
    """Send a request every `PERIOD_S` from each of two clients, and count what comes back."""
    seen: Counter[object] = Counter()
    stop = threading.Event()

    def send(first):
        with httpx.Client(timeout=LIMIT_S) as client:
            value = first
            while not stop.is_set():
                value += 2
                tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1], "data": [value]}
                started_s = time.monotonic()
                try:
                    answer = client.post(
                        f"{service.url}/v2/models/googlenet/infer", json={"inputs": [tensor]}
                    )
                    wrong = answer.is_success and answer.json()["outputs"][0]["data"] != [value]
                    failed = f"{answer.status_code} {answer.text}"
                    seen["wrong" if wrong else 200 if answer.is_success else failed] += 1
                except httpx.HTTPError as error:
                    seen[type(error).__name__] += 1
                stop.wait(max(0.0, started_s + PERIOD_S - time.monotonic()))

    clients = [threading.Thread(target=send, args=(first,)) for first in (0, 1)]
    for client in clients:
        client.start()
    try:
        yield seen
    finally:
        stop.set()
        for client in clients:
            client.join()


def test_no_request_is_lost_while_replicas_are_replaced_and_stopped(one_ray: Running):
    """Not even with one replica, nor while a new version does not come up."""
    service = one_ray.serve_instead(document(1, "1"))
    with load(service) as seen:
        assert wait_for(lambda: len(service.replicas()) == 1)
        (first,) = service.replicas()
        service.redeploy(document(1, "2"))
        assert wait_for(lambda: version(service) == "2" and first not in service.replicas())
        (second,) = service.replicas()
        broken = document(1, "3")
        broken["applications"][0]["args"]["model"]["options"] = {"profile": "no-such-file"}
        service.redeploy(broken)
        assert wait_for(lambda: "no-such-file" in str(service.applications()[NAME]))
        assert second in service.replicas()
        assert version(service) == "2"
        service.redeploy(document(2, "2"))
        assert wait_for(lambda: len(service.replicas()) == 2)
        service.redeploy(document(1, "2"))
        assert wait_for(lambda: len(service.replicas()) == 1)
        assert seen.total() > 40
        assert set(seen) == {200}


def version(service: Running):
    (found,) = get(f"{service.url}/v2/models/googlenet").json()["versions"]
    return str(found)
