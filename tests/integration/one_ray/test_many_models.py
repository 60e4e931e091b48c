"""Several models of a store in the replicas of one deployment, and new weights under load."""

import itertools
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import numpy as np
import psutil
import pytest
import safetensors.numpy

from deployments.modelstore.client import ask, list_models
from tests.support.models.model_stores import is_up, publish, sign
from tests.support.models.stored_models import LAYERS, WIDTH, layer_weights
from tests.support.processes.services import Running, get, load_document, post, serving_late
from tests.support.waiting import LIMIT_S, wait_for

pytestmark = pytest.mark.integration

BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
#: The factor of each version of the two models.
FACTORS = {("twos", "1"): 2.0, ("twos", "2"): 4.0, ("threes", "1"): 3.0, ("threes", "2"): 9.0}
#: Of a third model, which is large.
WEIGHT_BYTES = 4 * LAYERS * WIDTH * WIDTH


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    for (name, version), factor in FACTORS.items():
        path = folder / "remote" / "pytorch" / name / version
        path.mkdir(parents=True)
        # Next to the factor, enough that sharing pays.
        weights = {"factor": np.array([factor], np.float32), "rest": np.ones(1 << 18, np.float32)}
        safetensors.numpy.save_file(weights, path / "scale.safetensors")
        sign(path)
    publish(folder / "remote", "layers", {"layers.safetensors": layer_weights()})
    document = serving_late(load_document("digits.yaml"))
    (application,) = document["applications"]
    models = [
        {
            "name": name,
            "import_path": f"tests.support.models.stored_models:{kind}",
            "max_batch_size": 4,
            "weights": f"store://{name}@1",
        }
        for name, kind in (("twos", "Scale"), ("threes", "Scale"), ("layers", "Layers"))
    ]
    application["name"] = "stored"
    application["args"] = {
        "model": models[0],
        "models": models[1:],
        "store": {
            "remote": (folder / "remote").as_uri(),
            "host_bytes": 1_000_000_000,
            "expert": {"disk": str(folder / "disk")},
        },
    }
    (deployment,) = application["deployments"]
    deployment["autoscaling_config"] |= {"min_replicas": 2, "max_replicas": 2}
    return document


@pytest.fixture(scope="module")
def service(one_ray: Running, document):
    return one_ray.serve_instead(document)


def answers(service: Running, name, number=12):
    """Return the versions and values that a number of new connections are answered."""
    found = set()
    for _ in range(number):
        answer = post(f"{service.url}/v2/models/{name}/infer", json=BODY)
        assert answer.status_code == 200, answer.text
        content = answer.json()
        found.add((content["model_version"], content["outputs"][0]["data"][0]))
    return found


@contextmanager
def asking(service: Running, *names):
    """Ask models again and again; no request may fail, and each answer be that of its version."""
    stop = threading.Event()

    def ask(name):
        with httpx.Client(timeout=LIMIT_S) as client:
            for asked in itertools.count():
                if stop.is_set():
                    return asked
                answer = client.post(f"{service.url}/v2/models/{name}/infer", json=BODY)
                assert answer.status_code == 200, answer.text
                content = answer.json()
                value = content["outputs"][0]["data"][0]
                assert value == FACTORS[name, content["model_version"]]
        raise AssertionError

    with ThreadPoolExecutor() as pool:
        clients = [pool.submit(ask, name) for name in names]
        try:
            yield
        finally:
            stop.set()
        assert sum(client.result() for client in clients) > 50


def test_each_model_answers_and_the_store_holds_each_once(service: Running):
    assert answers(service, "twos") == {("1", 2.0)}
    assert answers(service, "threes") == {("1", 3.0)}
    assert get(f"{service.url}/v2/models/other").status_code == 404
    policy = get(f"{service.url}/sojourn/policy").json()
    leases = {row["name"]: row["leases"] for row in list_models(policy["start"]["store_socket"])}
    assert leases == {"pytorch/twos@1": 2, "pytorch/threes@1": 2, "pytorch/layers@1": 2}
    start = policy["start"]
    assert math.fsum(start["phases_s"].values()) == pytest.approx(start["total_s"])
    assert start["phases_s"]["weights"] > 0
    assert wait_for(lambda: "sojourn_start_seconds{" in get(service.summary["metrics_url"]).text)


def test_the_autoscaler_knows_how_long_starts_from_each_tier_take(service: Running):
    def times_s():
        newest = get(f"{service.url}/sojourn/autoscaler").json()["newest"] or {}
        return newest.get("start_times_s") or {}

    assert wait_for(times_s)
    assert set(times_s()) <= {"remote", "host"}
    assert min(times_s().values()) > 0


def unique_weight_bytes(replica):
    """Return the bytes of a process's mapped weights that are its own, and those it shares."""
    mappings = [entry for entry in replica.memory_maps(grouped=False) if "sojourn:" in entry.path]
    assert mappings
    own = sum(entry.private_clean + entry.private_dirty for entry in mappings)
    return own, sum(entry.shared_clean + entry.shared_dirty for entry in mappings)


def test_the_replicas_share_the_memory_of_the_weights(service: Running):
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, WIDTH]}
    row = {**tensor, "data": [1.0, *[0.0] * (WIDTH - 1)]}
    # Both have answered, so both have mapped all of it.
    for _ in range(12):
        answer = post(f"{service.url}/v2/models/layers/infer", json={"inputs": [row]})
        assert answer.status_code == 200
        data = answer.json()["outputs"][0]["data"]
        assert (data[0], any(data[1:])) == (math.factorial(LAYERS), False)
    replicas = service.replicas().values()
    assert len(replicas) == 2
    for replica in replicas:
        own, shared = unique_weight_bytes(replica)
        assert own <= 0.02 * WEIGHT_BYTES
        assert shared >= 0.98 * WEIGHT_BYTES


def test_a_deploy_of_new_weights_replaces_no_replica_and_fails_no_request(
    service: Running, document
):
    replicas = set(service.replicas())
    user_config = document["applications"][0]["deployments"][0]["user_config"]
    user_config["models"] = {"twos": {"version": "2"}}
    with asking(service, "twos", "threes"):
        service.redeploy(document)
        assert wait_for(lambda: answers(service, "twos") == {("2", 4.0)})
    assert set(service.replicas()) == replicas
    index = post(f"{service.url}/v2/repository/index", json={"ready": True}).json()
    versions = {row["name"]: row["version"] for row in index}
    assert versions == {"twos": "2", "threes": "1", "layers": "1"}
    socket_path = get(f"{service.url}/sojourn/policy").json()["start"]["store_socket"]

    def old_weights_are_given_back():
        leases = {row["name"]: row["leases"] for row in list_models(socket_path)}
        return (leases["pytorch/twos@1"], leases["pytorch/twos@2"]) == (0, 2)

    assert wait_for(old_weights_are_given_back)


def test_a_manager_that_is_killed_comes_back(service: Running):
    socket_path = get(f"{service.url}/sojourn/policy").json()["start"]["store_socket"]
    (manager,) = (
        child
        for child in service.process.children(recursive=True)
        if child.name().startswith("ray::StoreActor")
    )
    manager.kill()
    manager.wait(LIMIT_S)
    victim = min(service.replicas())

    assert wait_for(lambda: is_up(socket_path))
    psutil.Process(victim).kill()
    assert wait_for(lambda: victim not in service.replicas() and len(service.replicas()) == 2)
    assert wait_for(lambda: ask("stats", socket_path=socket_path)["leases"] >= 1)
