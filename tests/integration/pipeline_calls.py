"""Serve two pipelines on one real Ray for `test_pipelines`, and print what was observed.

Stages of the first compute in processes of its replica; one of the second has Ray replicas of its
own. This runs in its own process, because Ray reads its settings from the environment on import and
ends with the process.
"""

import asyncio
import copy
import json
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import httpx
import psutil
import yaml

from deployments.local.cluster import deploy
from deployments.local.run import LocalRun, ServedApplication
from deployments.local.service import local_service
from deployments.pipelines.serving.config import AUTOSCALING_POLICY
from tests.support.ports import free_port
from tests.support.processes.services import ROOT
from tests.support.waiting import LIMIT_S, has_ended, wait_for

NAME, STAGE = "digits-pipeline", "classify"
#: How long requests are sent while a replica is killed.
FAULT_S = 6.0


def document(port: int) -> dict[str, Any]:
    """Return the digits pipeline: how fast this machine is, is not the question."""
    content: dict[str, Any] = yaml.safe_load((ROOT / "configs/digits-pipeline.yaml").read_text())
    content["http_options"]["port"] = port
    (deployment,) = content["applications"][0]["deployments"]
    deployment["user_config"]["sla"]["response_time_ms"] = 2000
    return content


def deployed_document(port: int) -> dict[str, Any]:
    """Return the digits pipeline, whose second stage has replicas of its own."""
    content: dict[str, Any] = yaml.safe_load((ROOT / "configs/digits-pipeline.yaml").read_text())
    content["http_options"]["port"] = port
    (application,) = content["applications"]
    pipeline = application["args"]["pipeline"]
    pipeline["autoscaling"] = {"max_workers": 4, "scale_down_delay_s": 5.0}
    stage = pipeline["steps"][1]["stage"]
    # 25 items per second from one replica, whatever the machine: their number must follow.
    stage["profile"] = {"max_batch_size": 2, "latency_ms": {"fixed": 40.0, "per_request": 20.0}}
    stage.update(
        code="tests.support.pipelines.stages:SlowDigits",
        place="deployment",
        workers=2,
        max_workers=3,
        batch_size=2,
        ray_actor_options={"num_cpus": 0.1},
    )
    application["autoscaling_policy"] = {"policy_function": AUTOSCALING_POLICY}
    (front,) = application["deployments"]
    front["ray_actor_options"] = {"num_cpus": 0.1}
    front["autoscaling_config"] = {
        "min_replicas": 1,
        "max_replicas": 1,
        "metrics_interval_s": 1,
        "look_back_period_s": 5,
        "upscale_delay_s": 0,
        "downscale_delay_s": 0,
    }
    front["user_config"]["sla"] = {"response_time_ms": 4000, "percentile": 99}
    return content


def stage_workers() -> set[psutil.Process]:
    """Return the worker processes of this service's stages, wherever Ray has started them."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            if any("deployments.pipelines.workers.child" in word for word in process.cmdline()):
                found.add(process)
    return found


def replicas(deployment: str) -> set[psutil.Process]:
    """Return the processes of a deployment's replicas in this service."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            words = process.cmdline()
            if words and "ServeReplica" in words[0] and f":{deployment}" in words[0]:
                found.add(process)
    return found


async def load(url: str, request: Any, rate_per_s: float, seconds: float) -> Counter[str]:
    """Send requests at a rate, and count the answers by status, or by why there is none."""
    ends: Counter[str] = Counter()
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as client:

        async def ask() -> None:
            try:
                answer = await client.post(f"/v2/models/{NAME}/infer", json=request)
                ends[str(answer.status_code)] += 1
            except httpx.HTTPError as error:
                ends[type(error).__name__] += 1

        tasks: list[asyncio.Task[None]] = []
        started_s = time.monotonic()
        while (passed_s := time.monotonic() - started_s) < seconds:
            while len(tasks) < rate_per_s * passed_s:
                tasks.append(asyncio.create_task(ask()))
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)
    return ends


def of_processes(client: httpx.Client, port: int, dashboard: str) -> dict[str, Any]:
    """Ask, kill a worker, ask again, change the SLA, and ask again."""
    observed: dict[str, Any] = {}
    request = client.get("/sojourn/example").json()

    def ask() -> Any:
        answer = client.post(f"/v2/models/{NAME}/infer", json=request)
        return answer.json()["outputs"][0]["data"] if answer.is_success else answer.text

    observed["answers"] = [ask() for _ in range(5)]
    (worker,) = stage_workers()
    worker.kill()
    # Under the SLA it refuses, until another worker has started.
    wait_for(lambda: client.get("/v2/health/ready").status_code == 503)
    refused = client.post(f"/v2/models/{NAME}/infer", json=request)
    observed["without_worker"] = refused.status_code
    wait_for(lambda: client.get("/v2/health/ready").is_success)
    observed["after_kill"] = [ask() for _ in range(5)]
    (replacement,) = stage_workers()
    observed["replaced"] = replacement != worker
    observed["pipeline"] = client.get("/sojourn/pipeline").json()
    changed = copy.deepcopy(document(port))
    sla = {"response_time_ms": 250, "percentile": 95}
    changed["applications"][0]["deployments"][0]["user_config"]["sla"] = sla
    deploy(changed, dashboard)

    def sla_in_words() -> str:
        return str(client.get("/sojourn/policy").json()["sla_in_words"])

    wait_for(lambda: "250" in sla_in_words())
    observed["sla"] = sla_in_words()
    observed["same_worker"] = stage_workers() == {replacement}
    return observed


def of_deployed_stage(client: httpx.Client, url: str) -> dict[str, Any]:
    """Ask, kill a replica of the stage under load, and let the load rise and fall."""
    observed: dict[str, Any] = {}
    request = client.get("/sojourn/example").json()

    def stage() -> dict[str, Any]:
        stages = client.get("/sojourn/pipeline").json()["stages"]
        return next(made for made in stages if made["name"] == STAGE)

    wait_for(lambda: stage()["workers"] == 2)
    answer = client.post(f"/v2/models/{NAME}/infer", json=request).json()
    observed["label"] = answer["outputs"][0]["data"]
    killed = max(replicas(STAGE), key=lambda process: process.pid)

    async def kill_under_load() -> Counter[str]:
        asking = asyncio.create_task(load(url, request, 10.0, FAULT_S))
        await asyncio.sleep(1.0)
        killed.kill()
        return await asking

    observed["while_killed"] = asyncio.run(kill_under_load())
    wait_for(lambda: stage()["workers"] == 2)
    # 60 requests per second need three replicas; a few need two, the least.
    observed["busy"] = asyncio.run(load(url, request, 60.0, 12.0))
    wait_for(lambda: stage()["workers"] == 3)
    observed["most_workers"] = stage()["workers"]
    observed["fronts"] = len(replicas("PipelineReplica"))
    wait_for(lambda: stage()["workers"] == 2)
    observed["after"] = asyncio.run(load(url, request, 5.0, 2.0))
    return observed


def main() -> None:
    """Serve one pipeline, and then the other in its place."""
    port = free_port()
    run = LocalRun("127.0.0.1", port, (ServedApplication(NAME, NAME, ""),), document(port))
    with (
        local_service(run, lambda line: None) as service,
        httpx.Client(base_url=service.url, timeout=LIMIT_S) as client,
    ):
        processes = of_processes(client, port, service.dashboard)
        workers = stage_workers()
        deploy(deployed_document(port), service.dashboard)
        wait_for(lambda: len(replicas(STAGE)) == 2)
        wait_for(lambda: all(has_ended(worker) for worker in workers))
        wait_for(lambda: client.get("/v2/health/ready").is_success)
        processes["left_over"] = sum(not has_ended(worker) for worker in workers)
        deployed = of_deployed_stage(client, service.url)
        last = replicas(STAGE)
    deployed["left_over"] = sum(not has_ended(process) for process in last)
    sys.stdout.write(json.dumps({"processes": processes, "deployed": deployed}))


if __name__ == "__main__":
    main()
