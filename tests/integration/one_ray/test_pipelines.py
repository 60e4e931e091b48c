"""Pipelines on a real Ray: a stage in processes of its replica, and one with Ray replicas.

All tests share one service and run in order.
"""

import asyncio
import itertools
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from deployments.config.replica_args import StoreConfig
from deployments.modelstore.client import list_models
from deployments.pipelines.serving.config import AUTOSCALING_POLICY
from tests.support.processes.services import Running, get, load_document, post
from tests.support.waiting import LIMIT_S, has_ended, wait_for

pytestmark = pytest.mark.integration

NAME, STAGE = "digits-pipeline", "classify"
STORE = StoreConfig(remote="file:///none", disk_bytes=0)


def document(**sla):
    """Return the digits pipeline: how fast this machine is, is not the question."""
    content = load_document("digits-pipeline.yaml")
    (deployment,) = content["applications"][0]["deployments"]
    deployment["user_config"]["sla"] = {"response_time_ms": 60_000, "percentile": 99, **sla}
    return content


def deployed_document():
    """Return the digits pipeline, whose second stage has replicas of its own."""
    content = document()
    (application,) = content["applications"]
    pipeline = application["args"]["pipeline"]
    pipeline["store"] = STORE.model_dump(exclude_unset=True)
    pipeline["autoscaling"] = {"max_workers": 4, "scale_down_delay_s": 5.0}
    stage = pipeline["steps"][1]["stage"]
    # 25 items per second from one replica, whatever the machine: their number must follow.
    stage["profile"] = {"max_batch_size": 2, "latency_ms": {"fixed": 40.0, "per_request": 20.0}}
    stage.update(
        code="tests.support.pipelines.stages:SlowDigits",
        share=True,
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
    front["user_config"] = {
        "sla": {"response_time_ms": 4000, "percentile": 99},
        "limits": {"late": "serve"},
    }
    return content


@pytest.fixture(scope="module")
def service(one_ray: Running):
    return one_ray.serve_instead(document())


def workers(service: Running):
    """Return the worker processes of the stages, wherever Ray has started them."""
    return {
        process
        for process, words in service.processes().items()
        if any("deployments.pipelines.workers.child" in word for word in words)
    }


def replicas(service: Running, deployment):
    """Return the processes of a deployment's replicas."""
    return {
        process
        for process, words in service.processes().items()
        if "ServeReplica" in words[0] and f":{deployment}" in words[0]
    }


def ask(service: Running):
    example = get(f"{service.url}/sojourn/example").json()
    return post(f"{service.url}/v2/models/{NAME}/infer", json=example)


def described(service: Running):
    return get(f"{service.url}/sojourn/pipeline").json()


def stage_workers(service: Running):
    (stage,) = (stage for stage in described(service)["stages"] if stage["name"] == STAGE)
    return int(stage["workers"])


@contextmanager
def load(service: Running, rate_per_s):
    """Send requests at a rate; count the answers by status."""
    ends: Counter[int] = Counter()
    stop = threading.Event()
    example = get(f"{service.url}/sojourn/example").json()

    async def send():
        async with httpx.AsyncClient(base_url=service.url, timeout=LIMIT_S) as client:

            async def ask():
                answer = await client.post(f"/v2/models/{NAME}/infer", json=example)
                ends[answer.status_code] += 1

            started_s = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for number in itertools.count(1):
                    while number > rate_per_s * (time.monotonic() - started_s):
                        await asyncio.sleep(0.01)
                    if stop.is_set():
                        return
                    group.create_task(ask())

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(lambda: asyncio.run(send()))
        try:
            yield ends
        finally:
            stop.set()
        sending.result()


def test_it_reads_the_digit_before_and_after_its_worker_was_killed(service: Running):
    assert ask(service).json()["outputs"][0]["data"] == [3]
    (worker,) = workers(service)
    worker.kill()
    answers: list[httpx.Response] = []

    def is_replaced():
        answers.append(ask(service))
        return answers[-1].is_success and worker not in workers(service)

    assert wait_for(is_replaced)
    # Without a worker it refuses.
    assert {answer.status_code for answer in answers} <= {200, 503}
    assert answers[-1].json()["outputs"][0]["data"] == [3]


def test_another_sla_takes_effect_without_a_restart(service: Running):
    assert described(service)["requests"]["completed"] >= 2
    before = workers(service)
    service.redeploy(document(response_time_ms=250, percentile=95))
    policy = f"{service.url}/sojourn/policy"
    words = "95% of requests within 250 ms"
    assert wait_for(lambda: get(policy).json()["sla_in_words"] == words)
    assert workers(service) == before


def test_a_deployed_stage_reads_the_digit_and_shares_its_weights(service: Running):
    before = workers(service)
    service.redeploy(deployed_document())
    assert wait_for(lambda: len(replicas(service, STAGE)) == 2 and stage_workers(service) == 2)
    assert wait_for(lambda: all(has_ended(worker) for worker in before))
    assert ask(service).json()["outputs"][0]["data"] == [3]
    (shared,) = list_models(STORE.settings().socket)
    assert (shared["name"].partition("@")[0], shared["leases"]) == ("file/digits.safetensors", 2)


def test_a_killed_replica_costs_no_answer(service: Running):
    """What it held is run once more, by the other."""
    before = replicas(service, STAGE)
    killed = max(before, key=lambda process: process.pid)
    with load(service, 10.0) as ends:
        assert wait_for(lambda: ends[200] > 5)
        killed.kill()
        assert wait_for(lambda: len(replicas(service, STAGE) - before) == 1)
        assert wait_for(lambda: stage_workers(service) == 2)
    assert set(ends) == {200}


def test_the_stage_follows_the_load_and_the_pipeline_does_not(service: Running):
    # 60 requests per second need three replicas.
    with load(service, 60.0) as ends:
        assert wait_for(lambda: stage_workers(service) == 3)
        assert len(replicas(service, "PipelineReplica")) == 1
        # Fewer follow only minutes later, as of a service.
        decisions = get(f"{service.url}/sojourn/autoscaler").json()["stages"][STAGE]
        assert decisions["newest"]["replicas"] == 3
    assert set(ends) == {200}
    assert ask(service).is_success
