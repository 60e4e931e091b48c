"""The Ray Serve deployment: a thin adapter around `InferenceService`."""

import asyncio
import gc
import importlib.metadata
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import ray
from ray import serve

from autoscaler.history.learning import store_history
from autoscaler.ray import store as ray_store
from autoscaler.reports import weights_tier_to_floats
from autoscaler.scaled_deployments import history_key
from autoscaler.standbys import roles_key
from deployments.batcher.crash_journal import journal_directory
from deployments.config.document import DEPLOYMENT
from deployments.config.replica_args import ModelConfig, StoreConfig
from deployments.config.user_config import UserConfig, parse_user_config
from deployments.control.background_reader import BackgroundReader
from deployments.control.decision_reader import decision_reader, replicas_in
from deployments.control.last_good_config import LastGoodConfig, apply_user_config
from deployments.control.policy_controller import TICK_S
from deployments.control.standby_role import StandbyRole
from deployments.haproxy.stats import HaproxyStats, socket_path_on
from deployments.hosting.app import HostingApp
from deployments.hosting.reconciler import ModelReconciler
from deployments.hosting.report import CombinedReport
from deployments.hosting.repository import ModelRepository
from deployments.http.middleware import open_fast_path
from deployments.models.frozen_imports import frozen_imports
from deployments.models.loading import find_model_class
from deployments.models.startup_timings import StartupTimings, process_busy_s
from deployments.observability.metrics import ReplicaMetrics
from deployments.profiling.profile_cache import ProfileCache
from deployments.serving.loop_watchdog import end_if_loop_hangs
from deployments.serving.lost_replicas import read_lost_replicas
from deployments.serving.ray_replica import call_when_draining, confine_to_node, leave_out_while
from deployments.serving.service import InferenceService
from deployments.serving.service_loading import load_service
from deployments.serving.service_start import ServiceStart
from deployments.serving.store_actor import open_store
from policy.errors import InvalidInputError, SojournError

logger = logging.getLogger("ray.serve")

#: How long a stopping replica waits for accepted requests; below `graceful_shutdown_timeout_s`.
DRAIN_TIMEOUT_S = 20.0
#: How often a replica asks Ray for the nodes of the cluster.
NODES_PERIOD_S = 5.0
#: Interval of queries to Ray's directory for replicas that were lost, while anybody asks, and the
#: limit on their time: the first one connects to it, and `sojourn top --once` asks only once.
LOST_PERIOD_S, LOST_TIMEOUT_S = 5.0, 1.5
#: Pause before a source of the history that does not answer is asked again.
HISTORY_AGAIN_AFTER_S = 300.0


def _profile_cache(model: str) -> ProfileCache | None:
    """Return where this deployment's replicas on this node share the profile of a model."""
    context = serve.get_replica_context()
    if context.code_version is None:
        return None
    node = ray.get_runtime_context().get_node_id()
    key = f"profile/{context.app_name}/{context.deployment}/{context.code_version}/{node}/{model}"

    def write(content: bytes) -> None:
        ray_store.store().save(key, lambda: content)

    return ProfileCache(lambda: ray_store.read(key), write)


async def _repeat(step: Callable[[], Awaitable[None]], period_s: Callable[[], float]) -> None:
    """Repeat a step, also after it has failed."""
    while True:
        try:
            await step()
        except Exception:
            logger.exception("a periodic step of the replica failed")
        await asyncio.sleep(period_s())


@serve.deployment(
    name=DEPLOYMENT,
    # The batcher queues and refuses requests, so Ray's own limit must never be reached.
    max_ongoing_requests=100_000,
    # Serve notices a dead replica at its next check, and only then starts another.
    health_check_period_s=1,
    health_check_timeout_s=10,
    graceful_shutdown_timeout_s=60,
    # A replacement serves before the replica that it replaces stops, so that even one replica can
    # be replaced without an outage. It needs room for one more replica in four, at least one.
    max_surge_percent=25,
    # An access-log line costs more than a request's share of its batch; counters tell as much.
    logging_config={"enable_access_log": False},
)
@serve.ingress()
class Replica:
    """One replica: models on a device, each behind a batcher, and an HTTP interface."""

    def __init__(
        self,
        model: dict[str, Any],
        store: dict[str, Any] | None = None,
        models: list[dict[str, Any]] | None = None,
        *,
        on_demand: bool = False,
    ) -> None:
        started_s = time.monotonic()
        start = ServiceStart(StartupTimings(process_busy_s()))
        confine_to_node()
        # Serve gives handlers to its own logger only.
        logging.getLogger("sojourn").parent = logger
        context = serve.get_replica_context()
        configs = [ModelConfig.model_validate(each) for each in (model, *(models or ()))]
        with start.timings.phase("imports"), frozen_imports():
            find_model_class(configs[0].import_path)
        self._node_id = ray.get_runtime_context().get_node_id()
        if store is not None:
            with start.timings.phase("store"):
                start.store_socket = open_store(StoreConfig.model_validate(store).settings())
        self._store_socket = start.store_socket
        self._alone = start.alone = len(configs) == 1
        first = self._load(configs[0], start)
        self._report = CombinedReport()
        self._repository = ModelRepository(
            first,
            configs,
            self._load,
            on_demand=on_demand,
            on_takeover=self._took_over,
            on_retired=self._report.retired,
        )
        self._reconciler = ModelReconciler(self._repository, configs)
        call_when_draining(self._repository.begin_drain)
        self._started_s = started_s
        #: How long the start took, once it is over, and the tier that had its weights.
        self._start_stats: dict[str, float] = {}
        self._metrics = ReplicaMetrics(first)
        self._tasks: list[asyncio.Task[None]] = []
        socket_path = socket_path_on(self._node_id)
        self._haproxy = HaproxyStats(f"-{context.replica_id.unique_id}", socket_path)
        key = roles_key(context.app_name, context.deployment)
        self._role = StandbyRole(
            context.replica_id.unique_id,
            lambda: ray_store.read(key),
            self._haproxy.nobody_serves,
            self._took_role,
        )
        leave_out_while(self._is_left_out)
        self._decisions = decision_reader(context.app_name, context.deployment, ray_store.read)
        lost = partial(read_lost_replicas, context.app_name, context.deployment)
        self._lost = BackgroundReader[list[dict[str, Any]]](
            lost, [], LOST_PERIOD_S, timeout_s=LOST_TIMEOUT_S
        )
        self._last_good = LastGoodConfig(
            *(context.app_name, context.deployment, first.model_name),
            *(ray_store.read, ray_store.store().save),
        )
        self._history_key = history_key(context.app_name, context.deployment)
        self._storing: asyncio.Task[None] | None = None
        self._history_code = 0
        version = importlib.metadata.version("sojourn")
        self._app = HostingApp(self._reconciler, version, self._fleet, context.replica_id.unique_id)

    def _load(self, config: ModelConfig, start: ServiceStart | None = None) -> InferenceService:
        """Load a model; this blocks."""
        context = serve.get_replica_context()
        cpus = ray.get_runtime_context().get_assigned_resources().get("CPU", 1.0)
        start = start or ServiceStart(store_socket=self._store_socket, alone=self._alone)
        start.profile_cache = _profile_cache(config.name)
        journals = journal_directory(
            self._node_id, context.app_name, context.deployment, config.model_dump_json()
        )
        service = load_service(config, cpus, journals, start)
        service.replica = context.replica_id.unique_id
        return service

    async def _fleet(self) -> Mapping[str, Any]:
        """Return the content of ``GET /sojourn/autoscaler``."""
        lost = await self._lost.content()
        return {**await self._decisions.content(), "lost_replicas": lost}

    def _is_left_out(self) -> bool:
        """Return whether load balancers are to send requests to other replicas."""
        return self._role.standby or any(one.overdue for one in self._repository.services)

    def _took_role(self, standby: bool) -> None:
        for service in self._repository.services:
            service.standby = standby

    def _took_over(self, service: InferenceService) -> None:
        service.standby = self._role.standby
        self._app.take_over(service)
        if service is self._repository.first:
            self._metrics.use(service)

    def __serve_build_asgi_app__(self) -> HostingApp:
        """Return the ASGI app. Serve calls this after the constructor has loaded the model."""
        open_fast_path(self._app)
        return self._app

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Apply a `user_config`. Ray calls this at the start and after each change.

        A new version of a model is loaded while the replica serves, and takes over by itself.

        If the config is invalid, or names a version that cannot be loaded, a running replica keeps
        what it has, and a starting one takes the deployment's last good config. Both report
        the error in their log and at ``/sojourn/policy``, so that a typo cannot take a service
        down.

        Raises
        ------
        SojournError
            The config is invalid, and the deployment never had another that was good.
        """
        await apply_user_config(self._reconciler, user_config, self._last_good, parse_user_config)
        if self._storing is not None:
            self._storing.cancel()
        self._storing = asyncio.create_task(self._store_history())
        await self._role.configure(self._user_config.autoscaler.settings().standbys)
        if not self._tasks:
            # The collector need not look at the model again, as it need not at the modules: their
            # hundreds of thousands of objects would stop the event loop for 90 ms at a time.
            gc.collect()
            gc.freeze()
            self._tasks = [
                asyncio.create_task(end_if_loop_hangs(self._longest_turn_s, TICK_S, self._hung)),
                *(
                    asyncio.create_task(_repeat(step, period_s))
                    for step, period_s in (
                        (self._tick, lambda: TICK_S),
                        (self._load_what_others_load, lambda: TICK_S),
                        (self._role.follow, lambda: self._role.period_s),
                        (self._find_nodes, lambda: NODES_PERIOD_S),
                    )
                ),
            ]
            started = self._repository.first.start
            started.timings.ready()
            found_in = None if started.weights is None else started.weights.found_in
            self._start_stats = {
                "start_time_s": time.monotonic() - self._started_s,
                **weights_tier_to_floats(found_in),
            }

    async def _store_history(self) -> None:
        """Store the load of past days, if the config names it, for the autoscaler."""
        self._history_code = 0
        source = self._user_config.autoscaler.history_source()
        while source is not None and not self._history_code:
            try:
                self._history_code = await asyncio.to_thread(
                    store_history,
                    source,
                    time.time(),
                    self._user_config.sla.objective.late_share_allowed,
                    lambda: ray_store.read(self._history_key),
                    lambda content: ray_store.store().save(self._history_key, lambda: content),
                )
            except SojournError as error:
                logger.warning("the autoscaler begins without its history: %s", error)
                if isinstance(error, InvalidInputError):
                    return
                await asyncio.sleep(HISTORY_AGAIN_AFTER_S)

    async def _tick(self) -> None:
        first = self._repository.first
        first.compare_with_proxy(await self._haproxy.read())
        seen = await self._repository.tick()
        if first is self._repository.first:
            await self._metrics.flush(seen[first.model_name])
        await self._follow_decisions()

    async def _load_what_others_load(self) -> None:
        """Load the models that clients of other replicas asked for."""
        self._reconciler.reconcile()

    async def _find_nodes(self) -> None:
        """Learn the addresses of the cluster's nodes, each of which may have a HAProxy."""
        nodes = await asyncio.to_thread(ray.nodes)
        self._app.haproxies.nodes = frozenset(
            node["NodeManagerAddress"] for node in nodes if node["Alive"]
        )

    @property
    def _user_config(self) -> UserConfig:
        return self._repository.first.controller.user_config

    def _longest_turn_s(self) -> float:
        """Return how long the event loop may be busy, with a batch of every model."""
        return 2 * sum(service.longest_batch_s for service in self._repository.services)

    def _hung(self) -> str | None:
        for service in self._repository.services:
            if service.stuck():
                return service.batcher.lost_reason or service.batcher.hang_in_words()
        return None

    async def _follow_decisions(self) -> None:
        """Limit tokens and power to this replica's share."""
        content = await self._decisions.content()
        self._repository.first.controller.share_power(replicas_in(content))
        access = self._repository.first.access
        if access.limits_rates:
            access.share_among(replicas_in(content), time.monotonic())

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return this replica's statistics, which Ray passes to the autoscaler."""
        if not self._start_stats:
            return {}
        return {
            **self._report.of(self._repository.services),
            **self._start_stats,
            "dry_run": float(self._user_config.autoscaler.dry_run),
            "history_code": float(self._history_code),
            "standby": float(self._role.standby),
        }

    def check_health(self) -> None:
        """Raise if Ray must replace this replica.

        Raises
        ------
        RuntimeError
            The device hangs.
        """
        if (hung := self._hung()) is not None:
            raise RuntimeError(hung)

    async def __del__(self) -> None:
        if hasattr(self, "_app"):
            self._app.console.close()
            # Ray has stopped the HTTP server; this finishes late requests and calls by handle.
            await self._repository.close(DRAIN_TIMEOUT_S)
            for task in self._tasks:
                task.cancel()
