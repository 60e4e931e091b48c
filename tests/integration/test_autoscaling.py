"""The autoscaler in Ray's controller: an emulated device, real load, and an SLA that changes."""

import subprocess
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.services import BIN, Running, load_document, serving, wait_for

pytestmark = pytest.mark.integration

RATE_PER_S = 50


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    config = tmp_path_factory.mktemp("emulated") / "emulated.yaml"
    document = load_document("emulated-p4.yaml")
    user_config = document["applications"][0]["deployments"][0]["user_config"]
    user_config["autoscaler"] = {"hold_s": 5, "window_s": 6}
    with serving(config, document) as running:
        yield running


def test_a_changed_sla_changes_the_replicas_and_restarts_none(service: Running) -> None:
    """One replica keeps 99% at this load, not 99.99%; the load itself does not change."""
    command = [BIN / "sojourn", "loadtest", "--url", service.url, "--model", "googlenet"]
    options = ["--rate", str(RATE_PER_S), "--duration-s", "60", "--json"]
    load = subprocess.Popen(
        [*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert wait_for(lambda: arrival_rate(service) > 0.8 * RATE_PER_S)
        (first,) = service.replicas()
        document = load_document("emulated-p4.yaml")
        user_config = document["applications"][0]["deployments"][0]["user_config"]
        user_config["autoscaler"] = {"hold_s": 5, "window_s": 6}
        user_config["sla"]["percentile"] = 99.99
        service.redeploy(document)
        assert wait_for(lambda: len(service.replicas()) == 2, timeout_s=40)
        assert first in service.replicas()
    finally:
        load.terminate()
        load.wait(20)
    # The load is gone, and what it needed goes after it.
    assert wait_for(lambda: len(service.replicas()) == 1, timeout_s=60)


def arrival_rate(service: Running) -> float:
    content = httpx.get(f"{service.url}/sojourn/policy").json()
    return float(content["arrival_rate_per_s"])
