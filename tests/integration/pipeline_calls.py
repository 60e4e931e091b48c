"""Serve a pipeline on a real Ray for `test_pipelines`, and print what was observed.

This runs in its own process, because Ray reads its settings from the environment on import and ends
with the process.
"""

import copy
import json
import sys
from contextlib import suppress
from typing import Any

import httpx
import psutil
import yaml

from deployments.local.cluster import deploy
from deployments.local.run import LocalRun, ServedApplication
from deployments.local.service import local_service
from tests.support.ports import free_port
from tests.support.processes.services import ROOT
from tests.support.waiting import LIMIT_S, has_ended, wait_for

NAME = "digits-pipeline"


def stage_workers() -> set[psutil.Process]:
    """Return the worker processes of this service's stages, wherever Ray has started them."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            if any("deployments.pipelines.workers.child" in word for word in process.cmdline()):
                found.add(process)
    return found


def main() -> None:
    """Serve, ask, kill a worker, ask again, change the SLA, and ask again."""
    document = yaml.safe_load((ROOT / "configs/digits-pipeline.yaml").read_text())
    document["http_options"]["port"] = port = free_port()
    # How fast this machine is, is not the question.
    (deployment,) = document["applications"][0]["deployments"]
    deployment["user_config"]["sla"]["response_time_ms"] = 2000
    run = LocalRun("127.0.0.1", port, (ServedApplication(NAME, NAME, ""),), document)
    observed: dict[str, Any] = {}
    with (
        local_service(run, lambda line: None) as service,
        httpx.Client(base_url=service.url, timeout=LIMIT_S) as client,
    ):
        request = client.get("/sojourn/example").json()

        def ask() -> Any:
            answer = client.post(f"/v2/models/{NAME}/infer", json=request)
            return answer.json()["outputs"][0]["data"] if answer.is_success else answer.text

        observed["answers"] = [ask() for _ in range(5)]
        (worker,) = stage_workers()
        worker.kill()
        # Under the SLA it refuses, until another worker has started.
        wait_for(lambda: client.get("/v2/health/ready").status_code == 503)
        observed["without_worker"] = client.post(
            f"/v2/models/{NAME}/infer", json=request
        ).status_code
        wait_for(lambda: client.get("/v2/health/ready").is_success)
        observed["after_kill"] = [ask() for _ in range(5)]
        (replacement,) = stage_workers()
        observed["replaced"] = replacement != worker
        observed["pipeline"] = client.get("/sojourn/pipeline").json()
        changed = copy.deepcopy(document)
        changed["applications"][0]["deployments"][0]["user_config"]["sla"] = {
            "response_time_ms": 250,
            "percentile": 95,
        }
        deploy(changed, service.dashboard)

        def sla() -> str:
            return str(client.get("/sojourn/policy").json()["sla_in_words"])

        wait_for(lambda: "250" in sla())
        observed["sla"] = sla()
        last = stage_workers()
        observed["same_worker"] = last == {replacement}
    observed["left_over"] = sum(not has_ended(process) for process in last)
    sys.stdout.write(json.dumps(observed))


if __name__ == "__main__":
    main()
