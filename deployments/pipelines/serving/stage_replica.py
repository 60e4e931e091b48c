"""The Ray Serve deployment of one stage, which runs the batches of pipelines.

A pipeline on the same machine sends its batches over a socket (`batch_server`), one on another
machine through the deployment's handle.
"""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from deployments.config.replica_args import StoreConfig
from deployments.models.threads import limit_threads
from deployments.pipelines.core.errors import WorkerLostError
from deployments.pipelines.core.items import BatchFailure
from deployments.pipelines.serving.step_config import StageConfig
from deployments.pipelines.workers.batch_server import BatchServer, socket_folder
from deployments.pipelines.workers.predictor import make_predictor
from deployments.pipelines.workers.replicas import ReplicaAccess
from deployments.serving.ray_replica import call_when_draining, confine_to_node
from deployments.serving.store_actor import use_store

#: Time for a stopping replica to finish its batch and for pipelines to disconnect.
DRAIN_TIMEOUT_S = 20.0
#: Interval of reports to the autoscaler. Changes take effect at once, because the pipeline delays
#: them itself.
AUTOSCALING = {
    "metrics_interval_s": 1.0,
    "look_back_period_s": 5.0,
    "upscale_delay_s": 0.0,
    "downscale_delay_s": 0.0,
}


@serve.deployment(
    # A call by handle waits for a free replica, tried in random order.
    max_ongoing_requests=1,
    request_router_config=RequestRouterConfig(
        request_router_class="deployments.serving.rand_router:RandRequestRouter"
    ),
    health_check_period_s=1,
    health_check_timeout_s=10,
    graceful_shutdown_timeout_s=30,
    logging_config={"enable_access_log": False},
)
class StageReplica:
    def __init__(
        self, stage: Mapping[str, Any], version: str, store: Mapping[str, Any] | None = None
    ) -> None:
        confine_to_node()
        if store is not None:
            use_store(StoreConfig.model_validate(store).settings())
        cpus = ray.get_runtime_context().get_assigned_resources().get("CPU", 1.0)
        limit_threads(cpus)
        made = StageConfig.model_validate(stage).build()
        self._hang_after_s = made.hang_after_s
        predict = make_predictor(made)
        self._server = BatchServer(predict, folder_of(version, made.name), cpus)
        call_when_draining(self._server.retire)

    async def run_batch(self, items: list[Any]) -> list[Any] | BatchFailure:
        return await asyncio.to_thread(self._server.run, items)

    async def runs(self) -> bool:
        return True

    def check_health(self) -> None:
        """Raise if Ray must replace this replica: the stage's code hangs, or no batch is taken."""
        if self._server.failed:
            raise RuntimeError("a thread that runs batches has ended")
        since_s = self._server.busy_since_s
        if since_s is not None and time.monotonic() - since_s > self._hang_after_s:
            raise RuntimeError(f"a batch took more than {self._hang_after_s:g} s")

    async def __del__(self) -> None:
        if hasattr(self, "_server"):
            await asyncio.to_thread(self._server.close, DRAIN_TIMEOUT_S)


def folder_of(version: str, stage: str) -> Path:
    application = serve.get_replica_context().app_name
    return socket_folder(ray.get_runtime_context().get_node_id(), application, version, stage)


def access_to(handle: DeploymentHandle, folder: Path) -> ReplicaAccess:
    async def call(items: list[Any]) -> list[Any] | BatchFailure:
        try:
            outcome: list[Any] | BatchFailure = await handle.run_batch.remote(items)
        except RayActorError as error:
            raise WorkerLostError(str(error).partition("\n")[0]) from error
        return outcome

    async def any_runs() -> None:
        await handle.runs.remote()

    return ReplicaAccess(folder, call, any_runs)
