"""Reconcile a replica's models with the config."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from deployments.config.declared import declared_models
from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import UserConfig
from deployments.hosting.failed_loads import FailedLoads
from deployments.hosting.repository import ModelRepository
from policy.errors import SojournError

logger = logging.getLogger("sojourn.service")


class ModelReconciler:
    """Load a replica's models in the versions of the config; `configs` are those of `args`."""

    def __init__(
        self,
        repository: ModelRepository,
        configs: list[ModelConfig],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.repository = repository
        self._configs = configs
        #: The models as `args` and `user_config` have them.
        self._declared = declared_models(configs, UserConfig())
        #: The last version of each model that was acted upon.
        self._reconciled: dict[str, ModelConfig] = {}
        self._failed = FailedLoads(clock)
        self._changing: set[asyncio.Future[None]] = set()
        self._started = False
        #: Done when all models of the config are loaded.
        self._activation: asyncio.Future[None] | None = None
        self._load_error: str | None = None

    @property
    def configured(self) -> bool:
        return self._started

    @property
    def config_error(self) -> str | None:
        """Error of the latest configuration, or None."""
        return self.repository.first.config_error

    @config_error.setter
    def config_error(self, error: str | None) -> None:
        self.repository.first.config_error = error

    async def configure(self, user_config: UserConfig) -> "asyncio.Future[None] | None":
        """Apply a configuration, and load the versions that it names.

        The first call waits for them. Later, the old versions serve until the new ones are loaded.

        The future is done when they are loaded, cancelled by the next configuration; None if they
        are loaded already. `InvalidInputError`: it names an unknown model or an impossible version.
        Another `SojournError`: it does not fit a model, or it is the first one and a model cannot
        be loaded.
        """
        declared = declared_models(self._configs, user_config)
        await self.repository.configure(user_config)
        self._declared = declared
        self._failed.forgive()
        if not self._started:
            await self._start()
            return None
        if self._activation is not None:
            self._activation.cancel()
        self._activation = asyncio.get_running_loop().create_future()
        self.reconcile()
        return self._activation

    async def _start(self) -> None:
        ends = await asyncio.gather(*self._due_loads(), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end
        self._started = True

    def reconcile(self) -> None:
        """Start loading versions; the index shows the progress."""
        for load in self._due_loads():
            task = asyncio.ensure_future(load)
            self._changing.add(task)
            task.add_done_callback(self._changed)
        self._update_status()

    def _changed(self, task: "asyncio.Future[None]") -> None:
        self._changing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            level = logging.WARNING if isinstance(error, SojournError) else logging.ERROR
            logger.log(level, "a model could not be reconciled: %s", error, exc_info=None)
        self._update_status()

    def _update_status(self) -> None:
        """Mark the configuration as active once all of its models are loaded."""
        if self._changing or any(config in self._failed for config in self._declared.values()):
            return
        if self._activation is not None and not self._activation.done():
            self._activation.set_result(None)
        if self._load_error is not None and self.config_error == self._load_error:
            self.config_error = None
        self._load_error = None

    async def load_on_demand(self, name: str) -> None:
        """Load a model in this replica, for a request.

        `NotFoundError`: the deployment has no such model. Another `SojournError`: it cannot be
        loaded, or a load failed a moment ago.
        """
        self.repository.config(name)
        desired = self._declared[name]
        self._failed.raise_if_early(desired)
        await self._load(desired)

    def _due_loads(self) -> list[Coroutine[Any, Any, None]]:
        loads: list[Coroutine[Any, Any, None]] = []
        for name, desired in self._declared.items():
            at_start = name == self.repository.first.model_name or not self.repository.on_demand
            changed = self._reconciled.get(name, None if at_start else desired) != desired
            self._reconciled[name] = desired
            # A model loaded on demand is retried only by a request.
            kept = at_start or self.repository.is_serving(name)
            if changed or (kept and self._failed.take_due(desired)):
                loads.append(self._reconcile_model(desired))
        return loads

    async def _reconcile_model(self, desired: ModelConfig) -> None:
        """Load a version; report a failure if the config names it."""
        try:
            await self._load(desired)
        except SojournError as error:
            if desired == self._declared[desired.name]:
                before, self._load_error = self._load_error, f"{desired.name}: {error}"
                # The rejection of a later config matters more.
                if self.config_error in (None, before):
                    self.config_error = self._load_error
            raise

    async def _load(self, desired: ModelConfig) -> None:
        try:
            await self.repository.load(desired)
        except Exception as error:
            self._failed.note(desired, error)
            raise
        self._failed.forget(desired)
