"""Replicas of real Ray Serve that take their weights from the node's model store."""

import math
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from deployments.modelstore.client import ask, list_models
from tests.support.models.model_stores import is_up, publish
from tests.support.models.store_model import LAYERS, WIDTH, layer_weights
from tests.support.processes.services import (
    Running,
    get,
    load_document,
    post,
    serving,
    serving_late,
)
from tests.support.waiting import LIMIT_S, wait_for

pytestmark = pytest.mark.integration

WEIGHT_BYTES = 4 * LAYERS * WIDTH * WIDTH


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("store")
    publish(folder / "remote", "layers", {"layers.safetensors": layer_weights()})
    document = serving_late(load_document("digits.yaml"))
    (application,) = document["applications"]
    application["args"] = {
        "model": {
            "name": "layers",
            "import_path": "tests.support.models.store_model:Layers",
            "max_batch_size": 4,
            "weights": "store://layers",
        },
        "store": {
            "remote": (folder / "remote").as_uri(),
            "host_bytes": 1_000_000_000,
            "expert": {"disk": str(folder / "disk")},
        },
    }
    return document


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any]
) -> Iterator[Running]:
    config = tmp_path_factory.mktemp("service") / "layers.yaml"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOJOURN_STORE", str(config.with_suffix(".sock")))
        with serving(config, document) as running:
            yield running


def start_of(service: Running) -> dict[str, Any]:
    """Return what one of the replicas tells of its start."""
    start: dict[str, Any] = get(f"{service.url}/sojourn/policy").json()["start"]
    return start


def unique_weight_bytes(replica: psutil.Process) -> tuple[int, int]:
    """Return the bytes of a process's mapped weights that are its own, and those it shares."""
    mappings = [entry for entry in replica.memory_maps(grouped=False) if "sojourn:" in entry.path]
    assert mappings
    own = sum(entry.private_clean + entry.private_dirty for entry in mappings)
    return own, sum(entry.shared_clean + entry.shared_dirty for entry in mappings)


def test_the_second_replica_maps_the_weights_of_the_first(
    service: Running, document: dict[str, Any]
) -> None:
    first = start_of(service)
    assert first["weights"] == "store://layers"
    assert first["weights_found_in"] == "remote"
    scaling = document["applications"][0]["deployments"][0]["autoscaling_config"]
    scaling["min_replicas"] = 2
    service.redeploy(document)

    starts: dict[float, dict[str, Any]] = {}

    def both_answer() -> bool:
        start = start_of(service)
        starts[start["total_s"]] = start
        return len(starts) == 2

    assert wait_for(both_answer)
    assert sorted(start["weights_found_in"] for start in starts.values()) == ["host", "remote"]
    for start in starts.values():
        assert math.fsum(start["phases_s"].values()) == pytest.approx(start["total_s"])
        assert min(start["phases_s"].values()) >= 0
        assert start["phases_s"]["weights"] > 0
    replicas = service.replicas().values()
    assert len(replicas) == 2
    for replica in replicas:
        own, shared = unique_weight_bytes(replica)
        assert own <= 0.02 * WEIGHT_BYTES
        assert shared >= 0.98 * WEIGHT_BYTES


def test_the_store_has_one_copy_that_both_hold(service: Running) -> None:
    socket_path = start_of(service)["store_socket"]
    (model,) = list_models(socket_path)
    assert model["name"] == "pytorch/layers@1"
    assert model["leases"] == 2
    assert WEIGHT_BYTES < model["host_bytes"] < 1.01 * WEIGHT_BYTES
    assert ask("stats", socket_path=socket_path)["opens"] == 2


def test_answers_are_right_and_the_first_one_is_timed(service: Running) -> None:
    example = get(f"{service.url}/sojourn/example").json()
    example["inputs"][0]["data"] = [1.0, *[0.0] * (WIDTH - 1)]
    answer = post(f"{service.url}/v2/models/layers/infer", json=example)
    assert answer.status_code == 200
    data = answer.json()["outputs"][0]["data"]
    assert data[0] == math.factorial(LAYERS)
    assert not any(data[1:])
    assert wait_for(lambda: (start_of(service)["first_answer_ms"] or 0) > 0)


def test_the_start_is_a_metric(service: Running) -> None:
    assert wait_for(lambda: "sojourn_start_seconds{" in get(service.summary["metrics_url"]).text)


def test_a_manager_that_is_killed_comes_back_and_takes_over_the_memory(service: Running) -> None:
    socket_path = start_of(service)["store_socket"]
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
    assert wait_for(lambda: ask("stats", socket_path=socket_path)["taken_over"] == 1)
