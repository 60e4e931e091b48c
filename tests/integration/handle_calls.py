"""Make handle calls between deployments on a real Ray for `test_handles`, and print the results.

This runs in its own process, because Ray reads its settings from the environment on import and ends
with the process.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import orjson
import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from autoscaler.ray import store as ray_store
from autoscaler.scaled_deployments import log_key
from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.errors import BusyError
from deployments.http.inference_protocol import parse_request
from deployments.local.serve_api import ServeApi
from deployments.serving.service_loading import load_service
from tests.support.processes.services import load_document
from tests.support.waiting import until, wait_for

RETRY_DELAY_MS = 50.0
SPREAD_CALLS = 400
CALLS_BESIDE_FULL_ONES = 80
#: Longer than the test takes.
LONG_S = 600.0
BUDGET = 3
MODELS = ("First", "Second")
#: In rows/s; one replica of the emulated device serves 139 within the SLA. With a burst on top of
#: it, the first model's load needs two, and the second's three, so that one moves to it even while
#: the first model's load is remembered.
OFFERED_PER_S = {"First": 120.0, "Second": 300.0}
ROWS = 64
LOAD_TIMEOUT_S = 90
ROUTER = "deployments.serving.rand_router:RandRequestRouter"
LIGHT = {"num_cpus": 0.01}


@serve.deployment(
    ray_actor_options=LIGHT,
    num_replicas=4,
    max_ongoing_requests=1,
    request_router_config=RequestRouterConfig(
        request_router_class=ROUTER, request_router_kwargs={"retry_delay_ms": RETRY_DELAY_MS}
    ),
)
class Worker:
    """A replica that is full with one call."""

    async def work(self, duration_s, begun=""):
        """Take some time; leave a file in the folder `begun`, if there is one."""
        name = str(serve.get_replica_context().replica_id.unique_id)
        if begun:
            (Path(begun) / name).touch()
        await asyncio.sleep(duration_s)
        return name


@serve.deployment(ray_actor_options=LIGHT)
class Caller:
    def __init__(self, worker):
        self._worker = worker

    async def spread(self):
        """Make calls one after the other; count them by replica, and tell how long one takes."""
        calls = [await self._timed_call() for _ in range(SPREAD_CALLS)]
        durations_s = [duration_s for _, duration_s in calls]
        return {
            "counts": dict(Counter(replica for replica, _ in calls)),
            "median_s": statistics.median(durations_s),
        }

    async def beside_full_ones(self, calls):
        """Keep three of four replicas full; return where other calls go, and how long they take."""
        with tempfile.TemporaryDirectory() as begun:
            busy = [asyncio.ensure_future(self._called(LONG_S, begun)) for _ in range(3)]
            await until(lambda: len(os.listdir(begun)) == len(busy))
            found = [await self._timed_call() for _ in range(calls)]
            for task in busy:
                task.cancel()
        replicas, durations_s = zip(*found, strict=True)
        return {"replicas": replicas, "durations_s": durations_s}

    async def _timed_call(self):
        started_s = time.monotonic()
        return await self._called(0), time.monotonic() - started_s

    async def _called(self, duration_s, begun=""):
        return await self._worker.work.remote(duration_s, begun)


@serve.deployment(ray_actor_options=LIGHT, max_ongoing_requests=10_000)
class Emulated:
    """An emulated device behind its batcher, without HTTP, that reports to the autoscaler."""

    def __init__(self):
        document = load_document("emulated-p4.yaml")
        model = document["applications"][0]["args"]["model"]
        self._service = load_service(ModelConfig.model_validate(model))
        tensor = {"name": "input", "datatype": "FP32", "shape": [ROWS, 1], "data": [7.0] * ROWS}
        self._body = orjson.dumps({"inputs": [tensor]})

    async def reconfigure(self, user_config):
        await self._service.configure(parse_user_config(user_config))

    async def infer(self):
        """Serve a request of several rows, unless the waiting room is full."""
        request = parse_request(self._body, None, self._service.signature)
        arrival_s = time.monotonic()
        with suppress(BusyError):
            await self._service.infer(request, arrival_s)
            self._service.count_answered(request.rows, arrival_s)

    def record_autoscaling_stats(self):
        return {**self._service.autoscaling_stats(), "start_time_s": 1.0}


@serve.deployment(ray_actor_options=LIGHT)
class Front:
    def __init__(self, *behind): ...


def shared(args):
    """Build an application of two models that share a budget."""
    models = [Emulated.options(name=name).bind() for name in MODELS]  # type: ignore[attr-defined]
    return Front.bind(*models)  # type: ignore[attr-defined]


def shared_document():
    scaling = {
        "min_replicas": 1,
        "max_replicas": BUDGET,
        "upscale_delay_s": 0,
        "downscale_delay_s": 0,
        "look_back_period_s": 5,
        "metrics_interval_s": 1,
        "policy": {
            "policy_function": "autoscaler.ray_adapter:SojournAutoscalingPolicy",
            "policy_kwargs": {"replica_budget": BUDGET},
        },
    }
    user_config = {
        "sla": {"response_time_ms": 500, "percentile": 99},
        "autoscaler": {"scale_down_delay_s": 3, "expert": {"window_s": 3}},
    }
    return {
        "proxy_location": "Disabled",
        "applications": [
            {
                "name": "shared",
                "import_path": "tests.integration.handle_calls:shared",
                "route_prefix": None,
                "deployments": [
                    {"name": name, "autoscaling_config": scaling, "user_config": user_config}
                    for name in MODELS
                ],
            }
        ],
    }


def replicas_of(*names):
    """Count the models' running and starting replicas, all at the same instant."""
    deployments = serve.status().applications["shared"].deployments
    return sum(
        number
        for name in names
        for state, number in deployments[name].replica_states.items()
        if state in ("RUNNING", "STARTING")
    )


async def load_one(name, until):
    """Overload one replica of a model until `until` holds; return the observed counts."""
    handle = serve.get_deployment_handle(name, "shared")
    deadline_s = time.monotonic() + LOAD_TIMEOUT_S
    calls, most, next_s = [], 0, time.monotonic()
    while time.monotonic() < deadline_s and not until():
        calls.append(handle.infer.remote())
        most = max(most, replicas_of(*MODELS))
        next_s += ROWS / OFFERED_PER_S[name]  # asking for the replicas takes time, too
        await asyncio.sleep(max(0.0, next_s - time.monotonic()))
    for call in calls:
        await call
    return {"replicas": {model: replicas_of(model) for model in MODELS}, "most_together": most}


async def share():
    """Load one model, then the other."""
    first, second = MODELS
    return [
        await load_one(first, lambda: replicas_of(first) == 2),
        await load_one(second, lambda: (replicas_of(first), replicas_of(second)) == (1, 2)),
    ]


def main():
    os.environ["RAY_SERVE_LOG_TO_STDERR"] = "0"
    context = ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=True,
        object_store_memory=100 << 20,
        logging_level="ERROR",
        log_to_driver=False,
    )
    try:
        sys.stdout.write(json.dumps(observed(f"http://{context.address_info['webui_url']}")))
    finally:
        ray.shutdown()


def observed(dashboard):
    serve.start(proxy_location="Disabled")
    ServeApi(dashboard).deploy(shared_document())
    caller = Caller.bind(Worker.bind())  # type: ignore[attr-defined]
    handle = serve.run(caller, name="rand", route_prefix=None)
    seen = {
        "spread": handle.spread.remote().result(),
        "beside_full_ones": handle.beside_full_ones.remote(CALLS_BESIDE_FULL_ONES).result(),
    }
    assert wait_for(lambda: all(replicas_of(model) == 1 for model in MODELS))
    return {
        **seen,
        "retry_delay_ms": RETRY_DELAY_MS,
        "budget": BUDGET,
        "shared": asyncio.run(share()),
        "decisions": {
            model: orjson.loads(ray_store.read(log_key("shared", model))) for model in MODELS
        },
    }


if __name__ == "__main__":
    main()
