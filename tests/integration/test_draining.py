"""Replicas that stop under load: scaled in, and replaced by a new version."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.services import BIN, Running, load_document, serving, wait_for

pytestmark = pytest.mark.integration

RATE_PER_S = 40


def document(replicas: int, version: str) -> dict[str, Any]:
    content = load_document("emulated-p4.yaml")
    application = content["applications"][0]
    application["args"]["model"]["version"] = version
    (deployment,) = application["deployments"]
    del deployment["autoscaling_config"]
    deployment["num_replicas"] = replicas
    return content


def start_load(service: Running, duration_s: int) -> "subprocess.Popen[str]":
    command = [str(BIN / "sojourn"), "loadtest", "--url", service.url, "--model", "googlenet"]
    options = ["--rate", str(RATE_PER_S), "--duration-s", str(duration_s), "--json"]
    return subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def test_a_stopping_replica_loses_no_request(tmp_path: Path) -> None:
    with serving(tmp_path / "emulated.yaml", document(2, "1")) as service:
        assert wait_for(lambda: len(service.replicas()) == 2)
        first = set(service.replicas())
        load = start_load(service, 50)
        try:
            # A new version replaces both replicas, one after the other.
            service.redeploy(document(2, "2"))
            assert wait_for(
                lambda: len(service.replicas()) == 2 and not first & set(service.replicas()), 40
            )
            service.redeploy(document(1, "2"))
            assert wait_for(lambda: len(service.replicas()) == 1, 30)
            assert load.poll() is None, "the load lasts longer than that"
            output, _ = load.communicate(timeout=60)
        finally:
            load.kill()
            load.wait()
    report = json.loads(output)
    assert report["requests"] > 0.8 * 50 * RATE_PER_S
    assert (report["wrong_answers"], report["lost"], report["failed"]) == (0, 0, {})
    assert report["ok"] == report["requests"]
