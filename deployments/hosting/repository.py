"""The models of a replica: loaded side by side, replaced by new versions, unloaded when idle.

Each version is an `InferenceService` with its own weights (a lease of the model store), batcher,
policy and SLA. A new version takes over once it can answer. The old one then answers its accepted
requests and releases its weights.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import UserConfig
from deployments.control.observations import Observations
from deployments.errors import BusyError, NotFoundError
from deployments.hosting.version import HostedVersion, State
from deployments.modelstore.errors import StoreFullError
from deployments.serving.service import InferenceService
from policy.errors import InvalidInputError

logger = logging.getLogger("sojourn.service")

#: Time for a replaced version to answer its accepted requests.
RETIRE_TIMEOUT_S = 60.0


class ModelRepository:
    """The models of one replica. All methods run on its event loop.

    `first`, the deployment's own model, is replaced by new versions but never unloaded; `configs`
    includes it. `load` blocks, so a thread calls it. With `on_demand`, other models are loaded
    when a request asks for one, so an idle one may be unloaded where the store is full.
    """

    def __init__(
        self,
        first: InferenceService,
        configs: list[ModelConfig],
        load: Callable[[ModelConfig], InferenceService],
        *,
        on_demand: bool = False,
        on_takeover: Callable[[InferenceService], None] = lambda service: None,
        on_retired: Callable[[InferenceService], None] = lambda service: None,
    ) -> None:
        self._configs = {config.name: config for config in configs}
        if len(self._configs) < len(configs):
            raise InvalidInputError("models: two have the same name")
        self.on_demand = on_demand
        self._load, self._on_takeover, self._on_retired = load, on_takeover, on_retired
        self._user_config = UserConfig()
        self._serving: dict[str, HostedVersion] = {}
        self._latest: dict[str, HostedVersion] = {}
        self._retiring: dict[HostedVersion, asyncio.Task[None]] = {}
        self._loads: dict[str, tuple[HostedVersion, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        config = self._configs[first.model_name]
        version = HostedVersion(config, State.READY, service=first)
        self._first = first.model_name
        self._serving[self._first] = self._latest[self._first] = version

    @property
    def first(self) -> InferenceService:
        """The active service of the deployment's own model."""
        service = self._serving[self._first].service
        assert service is not None
        return service

    @property
    def services(self) -> list[InferenceService]:
        """The active services, the first model's first."""
        return [version.service for version in self._serving.values() if version.service]

    @property
    def names(self) -> list[str]:
        return list(self._configs)

    def config(self, name: str) -> ModelConfig:
        """Return the configuration with which a model was loaded last, or would be.

        `NotFoundError`: the deployment has no such model.
        """
        if name not in self._configs:
            raise NotFoundError(f"there is no model {name!r:.100}; there are {self._all_names()}")
        return self._configs[name]

    def is_serving(self, name: str) -> bool:
        return name in self._serving

    @contextmanager
    def using(self, name: str, version: str | None = None) -> Iterator[InferenceService]:
        """Keep a model's service open and loaded during a request.

        `NotFoundError`: there is no such model or version. `BusyError`: it is not loaded here, or
        still loading; another replica may have it.
        """
        self.config(name)
        found = self._serving.get(name)
        if found is None or found.service is None:
            state = self._latest[name].state.value.lower() if name in self._latest else "not loaded"
            raise BusyError(f"model {name!r} is {state}", "loading")
        if version is not None and version != found.config.version:
            raise NotFoundError(
                f"model {name!r} has no version {version!r:.100}; its version is "
                f"{found.config.version!r}"
            )
        found.in_use += 1
        found.last_use_s = time.monotonic()
        try:
            yield found.service
        finally:
            found.in_use -= 1
            if not found.in_use:
                found.unused.set()

    def index(self) -> list[dict[str, str]]:
        """Return each model's versions and states, in the form of ``/v2/repository/index``."""
        rows = []
        for name, config in self._configs.items():
            versions = [self._serving.get(name), self._latest.get(name)]
            versions += [version for version in self._retiring if version.config.name == name]
            distinct = [version for version in dict.fromkeys(versions) if version is not None]
            rows += [
                {
                    "name": name,
                    "version": version.config.version,
                    "state": version.state.value,
                    "reason": version.reason,
                }
                for version in distinct or [HostedVersion(config, State.UNAVAILABLE, "not loaded")]
            ]
        return rows

    async def configure(self, user_config: UserConfig) -> None:
        """Apply a configuration to all loaded models, each with its own part.

        `SojournError`: it does not fit a model. All models keep their present one.
        """
        for service in self.services:
            service.check(user_config.for_model(service.model_name))
        for service in self.services:
            await service.configure(user_config.for_model(service.model_name))
        self._user_config = user_config

    async def load(self, config: ModelConfig) -> None:
        """Load a version; it takes over from the active one as soon as it can answer.

        Calls for the same version share one load. Loads of different versions run side by side, and
        the version requested last becomes active.

        `NotFoundError`: the deployment has no such model. Another `SojournError`: it cannot be
        loaded, and the active version stays.
        """
        self.config(config.name)
        serving = self._serving.get(config.name)
        if serving is not None and serving.config == config:
            # A running load of another version finds that it is superseded.
            self._latest[config.name] = serving
            return
        key = config.model_dump_json()
        if key not in self._loads:
            version = HostedVersion(config)
            self._loads[key] = version, self._start(self._take_in(version, key))
        version, task = self._loads[key]
        self._latest[config.name] = version
        # A client that disconnects does not stop a load that others may need.
        await asyncio.shield(task)

    async def tick(self) -> dict[str, Observations]:
        """Tick all services; return each model's observations by name."""
        for version in self._retiring:
            if version.service is not None:
                version.service.end_overdue()
        return {service.model_name: await service.tick() for service in self.services}

    def begin_drain(self) -> None:
        """Report all models as not ready; late requests are still answered."""
        for service in self.services:
            service.begin_drain()

    async def close(self, timeout_s: float) -> None:
        """Answer the accepted requests within a time limit, and close all models."""
        retirements = set(self._retiring.values())
        for task in self._tasks - retirements:
            task.cancel()
        services = self.services
        async with asyncio.TaskGroup() as group:
            for service in services:
                group.create_task(service.drain(timeout_s))
            if retirements:
                group.create_task(asyncio.wait(retirements, timeout=timeout_s))
        for task in retirements:
            task.cancel()
        await asyncio.gather(*retirements, return_exceptions=True)
        for service in services:
            await service.close()

    async def _take_in(self, version: HostedVersion, key: str) -> None:
        config = version.config
        try:
            service = await self._make(config)
            # A token has one limit for all models.
            service.access = self.first.access
            try:
                await service.configure(self._user_config.for_model(config.name))
            except BaseException:
                await _discard(service)
                raise
        except Exception as error:
            version.state, version.reason = State.UNAVAILABLE, str(error)
            logger.error("%s %s is not loaded: %s", config.name, config.version, error)
            raise
        finally:
            # The outcome of this load is decided now, so no later call may share it.
            del self._loads[key]
        if self._latest.get(config.name) is not version:
            # Another version has been requested since.
            await _discard(service)
            return
        old = self._serving.get(config.name)
        if old is not None and old.service is not None:
            # Bodies that are being read now release their memory to the new service.
            service.bodies = old.service.bodies
            service.config_error = old.service.config_error
        version.service, version.state = service, State.READY
        version.last_use_s = time.monotonic()
        self._serving[config.name], self._configs[config.name] = version, config
        self._on_takeover(service)
        logger.info("%s %s serves", config.name, config.version)
        if old is not None:
            self._retire(old)

    async def _make(self, config: ModelConfig) -> InferenceService:
        """Load a model; if the store is full, unload the models that were idle for longest."""
        while True:
            try:
                return await asyncio.to_thread(self._load, config)
            except StoreFullError as error:
                idle = [
                    version
                    for name, version in self._serving.items()
                    if not version.in_use and name not in (self._first, config.name)
                ]
                if not idle or not self.on_demand:
                    raise
                victim = min(idle, key=lambda version: version.last_use_s)
                name = victim.config.name
                logger.info("%s makes room for %s: %s", name, config.name, error)
                self._latest.pop(name, None)  # a running load finds that it is superseded
                # A replica that stops ends this load, but not requests that still run.
                await asyncio.shield(self._retire(self._serving.pop(name)))

    def _retire(self, version: HostedVersion) -> "asyncio.Task[None]":
        """Close a version without new requests, once its requests are answered."""
        version.state = State.UNLOADING
        task = self._retiring[version] = self._start(self._finish(version))
        return task

    async def _finish(self, version: HostedVersion) -> None:
        service = version.service
        assert service is not None
        drained = False
        try:
            async with asyncio.timeout(RETIRE_TIMEOUT_S):
                while version.in_use:
                    version.unused.clear()
                    await version.unused.wait()
                drained = await service.drain(RETIRE_TIMEOUT_S)
        except TimeoutError:
            logger.error("%s %s is closed in use", version.config.name, version.config.version)
        finally:
            await service.close()
            self._on_retired(service)
            # A lost device may still compute with the weights.
            if drained and service.batcher.lost_reason is None:
                service.unload()
            version.service = None
            del self._retiring[version]

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the index shows it; perhaps no caller waits for it

    def _all_names(self) -> str:
        return ", ".join(map(repr, self._configs))


async def _discard(service: InferenceService) -> None:
    """Close a service that had no request, and release its weights."""
    await service.close()
    service.unload()
