"""The Ray Serve deployment: a thin adapter around `deployments.service`."""

import asyncio
import importlib.metadata
import logging
import time
from typing import Any

from ray import serve

from autoscaler.ray import store as ray_store
from deployments.config import DEPLOYMENT, ModelConfig, parse_user_config
from deployments.control.decision_reader import DecisionReader
from deployments.control.policy_controller import TICK_S
from deployments.http.app import InferenceApp
from deployments.metrics import ReplicaMetrics
from deployments.middleware import open_fast_path
from deployments.service import load_service
from policy.errors import SojournError

logger = logging.getLogger("ray.serve")

#: A replica that goes waits so long for what it has accepted, within `graceful_shutdown_timeout_s`.
DRAIN_TIMEOUT_S = 20.0


@serve.deployment(
    name=DEPLOYMENT,
    # Queueing and refusing are the batcher's; Ray's own queue before it must never fill.
    max_ongoing_requests=100_000,
    health_check_period_s=5,
    health_check_timeout_s=10,
    graceful_shutdown_timeout_s=60,
    # A line for each request costs more than its batch does; the counters say as much.
    logging_config={"enable_access_log": False},
)
@serve.ingress()
class Replica:
    """One replica: a model on a device, behind a batcher, answering HTTP."""

    def __init__(self, model: dict[str, Any]) -> None:
        started_s = time.monotonic()
        self._service = load_service(ModelConfig.model_validate(model))
        self._started_s = started_s
        self._start_time_s: float | None = None
        self._metrics = ReplicaMetrics(self._service)
        self._metrics_task: asyncio.Task[None] | None = None
        context = serve.get_replica_context()
        self._decisions = DecisionReader(context.app_name, context.deployment, ray_store.read)

    def __serve_build_asgi_app__(self) -> InferenceApp:
        """Give Serve the app, once the model is loaded."""
        version = importlib.metadata.version("sojourn")
        app = InferenceApp(self._service, version, self._decisions.content)
        open_fast_path(app)
        return app

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Take a changed `user_config`; Ray calls this at the start, too.

        A wrong one ends a replica that starts. One that runs keeps what it has, and says so in its
        log and under `/sojourn/policy`: a typing error must not take a service down.
        """
        service = self._service
        try:
            await service.configure(parse_user_config(user_config))
            service.config_error = None
        except SojournError as error:
            if not service.configured:
                raise
            service.config_error = str(error)
            logger.error("the changed configuration is not taken: %s", error)
        if self._metrics_task is None:
            self._metrics_task = asyncio.create_task(self._tick_for_ever())
            self._start_time_s = time.monotonic() - self._started_s

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self._metrics.flush(await self._service.tick())
            except Exception:
                # The next second may fare better; the requests must not suffer from this one.
                logger.exception("a replica's tick failed")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Tell Ray, and so the autoscaler, how this replica fares."""
        if self._start_time_s is None:
            return {}
        user_config = self._service.controller.user_config
        return {
            **self._service.autoscaling_stats(),
            "start_time_s": self._start_time_s,
            "dry_run": float(user_config.autoscaler.dry_run),
        }

    def check_health(self) -> None:
        """Raise where the replica must be replaced."""
        if self._service.stuck():
            raise RuntimeError("the device has been on one batch for too long")

    async def __del__(self) -> None:
        if hasattr(self, "_service"):
            # Ray has let the HTTP server finish; this is for who came another way, or late.
            await self._service.drain(DRAIN_TIMEOUT_S)
            await self._service.close()
