"""The Ray Serve application of a pipeline, and the deployment that holds it.

One replica of the deployment holds the queues of the whole pipeline. Ray accounts for the replica's
CPUs, so give it as many as its workers use.
"""

import asyncio
import hashlib
import importlib.metadata
import itertools
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson
from ray import serve
from ray.serve.handle import DeploymentHandle

from autoscaler.ray import store as ray_store
from autoscaler.scaled_deployments import SAVE_PERIOD_S
from deployments.control.last_good_config import LastGoodConfig, apply_user_config
from deployments.http.middleware import open_fast_path
from deployments.models.threads import limit_threads
from deployments.observability.metrics import RayExporter
from deployments.pipelines.serving.app import PipelineApp
from deployments.pipelines.serving.config import DEPLOYMENT, parse_args, parse_user_config
from deployments.pipelines.serving.metrics import PIPELINE_INSTRUMENTS
from deployments.pipelines.serving.ray_scaling import NEED
from deployments.pipelines.serving.service import PipelineService
from deployments.pipelines.serving.stage_replica import (
    AUTOSCALING,
    StageReplica,
    access_to,
    folder_of,
)
from deployments.pipelines.serving.step_config import StageConfig
from deployments.serving.ray_replica import call_when_draining, confine_to_node
from deployments.serving.store_actor import use_store
from policy.errors import InvalidInputError

logger = logging.getLogger("ray.serve")

#: Time for a stopping replica to answer admitted requests; below `graceful_shutdown_timeout_s`.
DRAIN_TIMEOUT_S = 20.0
#: Interval of metrics to Ray.
FLUSH_S = 1.0


@serve.deployment(
    name=DEPLOYMENT,
    # The pipeline queues and refuses requests, so Ray's own limit must never be reached.
    max_ongoing_requests=100_000,
    health_check_period_s=5,
    health_check_timeout_s=10,
    graceful_shutdown_timeout_s=60,
    logging_config={"enable_access_log": False},
    # Without one Ray would not call `reconfigure`, and the stages would not be scaled.
    user_config={},
)
@serve.ingress()
class PipelineReplica:
    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, args: dict[str, Any], version: str, stages: Mapping[str, DeploymentHandle]
    ) -> None:
        confine_to_node()
        limit_threads(1)  # of each worker
        # Serve gives handlers to its own logger only.
        logging.getLogger("sojourn").parent = logger
        replicas = {
            name: access_to(handle, folder_of(version, name)) for name, handle in stages.items()
        }
        config = parse_args(args)
        if config.store is not None:
            await asyncio.to_thread(use_store, config.store.settings())
        self._service = PipelineService(config, None, replicas)
        context = serve.get_replica_context()
        self._service.replica = context.replica_id.unique_id
        self._last_good = LastGoodConfig(
            *(context.app_name, context.deployment, self._service.model_name),
            *(ray_store.read, ray_store.store().save),
        )
        call_when_draining(self._service.begin_drain)
        self._stages_key = f"stages#{context.app_name}#{context.deployment}"
        await self._recall_load()
        await self._service.start()
        self._metrics = RayExporter(PIPELINE_INSTRUMENTS)
        self._flushing = asyncio.create_task(self._flush_forever())

    async def _recall_load(self) -> None:
        """Go on with what an earlier replica, or another one, knows of the load of the stages."""
        if self._service.autoscaler is not None:
            packed = await asyncio.to_thread(ray_store.read, self._stages_key)
            try:
                self._service.autoscaler.scaler.load_state(orjson.loads(packed or b"{}"))
            except (InvalidInputError, orjson.JSONDecodeError) as error:
                logger.warning("the saved load of the stages is dropped: %s", error)

    async def _flush_forever(self) -> None:
        for second in itertools.count(1):
            await asyncio.sleep(FLUSH_S)
            try:
                if self._service.autoscaler is not None and second % SAVE_PERIOD_S == 0:
                    pack = self._service.autoscaler.scaler.snapshot()
                    ray_store.store().save(self._stages_key, partial(_packed, pack))
                for given in PIPELINE_INSTRUMENTS:
                    for labels, value in given.read(self._service):
                        self._metrics.export(given, (self._service.model_name, *labels), value)
            except Exception:
                # A failed export must not prevent later ones.
                logger.exception("the metrics of the pipeline could not be exported")

    def __serve_build_asgi_app__(self) -> PipelineApp:
        self._app = PipelineApp(self._service, importlib.metadata.version("sojourn"))
        open_fast_path(self._app)
        return self._app

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Apply a `user_config`, at the start and after each change (`apply_user_config`)."""
        await apply_user_config(self._service, user_config, self._last_good, parse_user_config)

    def record_autoscaling_stats(self) -> dict[str, float]:
        autoscaler = self._service.autoscaler
        if autoscaler is None:
            return {}
        needs = {NEED + name: need for name, need in autoscaler.replica_needs().items()}
        return needs | autoscaler.report()

    def check_health(self) -> None:
        """Raise if Ray must replace this replica: a stage cannot start a worker."""
        pipeline = self._service.pipeline
        for stage in pipeline.core.stages:
            # Ray replaces the replicas of a stage in a deployment; another pipeline finds no more.
            if stage.lost is not None and stage.name not in pipeline.replicas:
                raise RuntimeError(stage.lost)

    async def __del__(self) -> None:
        if hasattr(self, "_service"):
            try:
                await asyncio.wait_for(self._service.pipeline.drain(), DRAIN_TIMEOUT_S)
            except TimeoutError:
                logger.error("not all requests were answered within %g s", DRAIN_TIMEOUT_S)
            if hasattr(self, "_flushing"):
                self._flushing.cancel()
            if hasattr(self, "_app"):
                self._app.console.close()
            await self._service.close()


def _packed(pack: Callable[[], dict[str, Any]]) -> bytes:
    return orjson.dumps(pack())


def build(args: dict[str, Any]) -> serve.Application:
    """Build the Serve application from its ``args``; errors as of `parse_args`."""
    config = parse_args(args)
    config.build()
    # Replicas use the sockets of their own version only.
    version = hashlib.sha256(orjson.dumps(args, option=orjson.OPT_SORT_KEYS)).hexdigest()
    store = None if config.store is None else config.store.model_dump(mode="json")
    stages = {
        name: _deploy(name, stage, version, store) for name, stage in config.deployed().items()
    }
    return PipelineReplica.bind(args, version, stages)  # type: ignore[attr-defined]


def _deploy(
    name: str, stage: StageConfig, version: str, store: dict[str, Any] | None
) -> serve.Application:
    options: dict[str, Any] = {"name": name}
    if stage.ray_actor_options is not None:
        options["ray_actor_options"] = stage.ray_actor_options.model_dump(exclude_unset=True)
    if stage.max_workers is None:
        options["num_replicas"] = stage.workers
    else:
        options["autoscaling_config"] = {
            **AUTOSCALING,
            "min_replicas": stage.workers,
            "max_replicas": stage.max_workers,
        }
    bound = StageReplica.options(**options)  # type: ignore[attr-defined]
    return bound.bind(stage.model_dump(mode="json"), version, store)
