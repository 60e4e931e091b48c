"""Stages in Ray deployments, called over their sockets; prints one JSON object.

``python -m benchmarks.peers.deployed_pipeline CLIENTS SECONDS STAGES FLOATS``

The same stages as in `benchmarks.pipelines`, each in one replica of a deployment of its own.
"""

import asyncio
import json
import sys
from typing import Any

import numpy as np
import ray
from ray import serve

from benchmarks.peers.pipeline_load import requests_per_s, seconds_per_request
from deployments.pipelines.serving.stage_replica import StageReplica
from deployments.pipelines.serving.step_config import StageConfig
from deployments.pipelines.workers.batch_server import socket_folder
from deployments.pipelines.workers.replicas import ReplicaAccess
from sojourn import Pipeline, Stage

_VERSION = "benchmark"


def deploy(name: str, code: str, batch_size: int | None = None) -> tuple[Stage, ReplicaAccess]:
    """Deploy a stage with one replica; return it, and the way to its replica."""
    config = StageConfig(code=code, name=name, place="deployment", batch_size=batch_size)
    replica = StageReplica.options(  # type: ignore[attr-defined]
        name=name, ray_actor_options={"num_cpus": 0.01}
    )
    bound = replica.bind(config.model_dump(mode="json"), _VERSION)
    serve.run(bound, name=name, route_prefix=None)
    node_id = ray.get_runtime_context().get_node_id()
    return config.build(), ReplicaAccess(socket_folder(node_id, name, _VERSION, name))


def pipeline_of(deployed: list[tuple[Stage, ReplicaAccess]]) -> Pipeline:
    """Return a pipeline of deployed stages."""
    return Pipeline(
        [stage for stage, _ in deployed],
        replicas={stage.name: access for stage, access in deployed},
    )


async def measure(clients: int, seconds: float, stages: int, floats: int) -> dict[str, Any]:
    """Return the time of a hop and the throughput."""
    same = [
        await asyncio.to_thread(deploy, f"same{n}", "benchmarks.pipelines:same")
        for n in range(stages)
    ]
    times_s = []
    for count in (1, stages):
        async with pipeline_of(same[:count]) as pipeline:
            times_s.append(await seconds_per_request(pipeline.predict, 1, seconds))
    both = [
        await asyncio.to_thread(deploy, name, f"benchmarks.pipelines:{name}", 32)
        for name in ("scale", "shift")
    ]
    value = np.ones(floats, np.float32)
    async with pipeline_of(both) as pipeline:
        await pipeline.predict(value)
        rate_per_s = await requests_per_s(pipeline.predict, value, clients, seconds)
    return {
        "hop_us": 1e6 * (times_s[1] - times_s[0]) / (stages - 1),
        "throughput_per_s": rate_per_s,
    }


if __name__ == "__main__":
    given = [float(word) for word in sys.argv[1:]]
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    serve.start(proxy_location="Disabled")
    observed = asyncio.run(measure(int(given[0]), given[1], int(given[2]), int(given[3])))
    serve.shutdown()
    ray.shutdown()
    print(json.dumps(observed))
