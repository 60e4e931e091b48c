"""Reconcile a replica's models with the config and the requests of clients.

A client's call to load or unload a model reaches one replica. That replica saves an override of the
config in the cluster's key-value store. The other replicas read it within a second or so, and new
replicas at their start. A deploy that changes the model's config ends the override.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import orjson

from deployments.config.declared import declared_models, revised
from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import UserConfig
from deployments.hosting.failed_loads import FailedLoads
from deployments.hosting.repository import ModelRepository
from policy.errors import SojournError

logger = logging.getLogger("sojourn.service")


class ModelReconciler:
    """Load and unload a replica's models until they are as desired.

    Parameters
    ----------
    configs : list of ModelConfig
        The models as the deployment's `args` have them.
    key : str
        The deployment's key of overrides in the key-value store.
    read : callable
        Returns the value of a key, or None. It may block, so it runs in a thread.
    save : callable
        Takes a key and a function whose result it saves under the key, without blocking.
    clock : callable
        Returns the time in s, for the pauses between attempts to load a version.
    """

    def __init__(
        self,
        repository: ModelRepository,
        configs: list[ModelConfig],
        *,
        key: str = "models",
        read: Callable[[str], bytes | None] = lambda key: None,
        save: Callable[[str, Callable[[], bytes]], object] = lambda key, content: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.repository = repository
        self._configs = configs
        #: The models as `args` and `user_config` have them.
        self._declared = declared_models(configs, UserConfig())
        self._key, self._read, self._save = key, read, save
        #: The last version of each model that was acted upon.
        self._reconciled: dict[str, ModelConfig | None] = {}
        #: The newest override of each model; none is ever deleted.
        self._overrides: dict[str, dict[str, Any]] = {}
        self._failed = FailedLoads(clock)
        self._changing: set[asyncio.Future[None]] = set()
        self._started = False
        #: Done when all models of the config are loaded.
        self._activation: asyncio.Future[None] | None = None
        self._load_error: str | None = None

    @property
    def configured(self) -> bool:
        """Whether a configuration is active and its models are loaded."""
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

        Returns
        -------
        Future or None
            Done when they are loaded, cancelled by the next configuration; None if they are loaded
            already.

        Raises
        ------
        InvalidInputError
            It names an unknown model or an impossible version.
        SojournError
            It does not fit a model, or it is the first one and a model cannot be loaded.
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
        await self.reconcile()
        return self._activation

    async def _start(self) -> None:
        """Load the desired models concurrently."""
        ends = await asyncio.gather(*await self._due_changes(), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end
        self._started = True

    async def reconcile(self) -> None:
        """Start loading and unloading models; the index shows the progress."""
        for change in await self._due_changes():
            task = asyncio.ensure_future(change)
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

    async def load(self, name: str, version: str | None = None, weights: str | None = None) -> None:
        """Load a model, or another version of it, here and in all replicas.

        Parameters
        ----------
        version : str, optional
            Its label; without `weights`, also its version in the model store.
        weights : str, optional
            ``store://[framework/]name[@version]``.

        Raises
        ------
        NotFoundError
            The deployment has no such model.
        InvalidInputError
            The weights are not in a model store, or a version is requested without a store.
        SojournError
            It cannot be loaded; other replicas do not try.
        """
        self.repository.config(name)
        declared = self._declared[name]
        desired = (
            declared if version is None and weights is None else revised(declared, version, weights)
        )
        if await self.repository.load(desired):
            self._failed.forget(desired)
            self._override(name, desired)

    async def load_on_demand(self, name: str) -> None:
        """Load a model in this replica, for a request.

        Raises
        ------
        NotFoundError
            The deployment has no such model.
        SojournError
            It cannot be loaded, or a load failed a moment ago.
        """
        self.repository.config(name)
        desired = self._desired(name) or self._declared[name]
        self._failed.raise_if_early(desired)
        await self._load(desired)

    async def unload(self, name: str) -> None:
        """Unload a model, here and in all replicas.

        Raises
        ------
        NotFoundError
            The deployment has no such model.
        InvalidInputError
            It is the deployment's own.
        """
        await self.repository.unload(name)
        self._override(name, None)

    def _override(self, name: str, desired: ModelConfig | None) -> None:
        """Set an override here and save it for the other replicas."""
        self._reconciled[name] = desired
        before_s = self._overrides.get(name, {}).get("time_s", 0.0)
        override = self._overrides[name] = {
            # Clocks of nodes differ; an override is newer than those it replaces.
            "time_s": max(time.time(), before_s + 1e-3),
            "declared": _digest(self._declared[name]),
            "desired": desired and {"version": desired.version, "weights": desired.weights},
        }
        self._save_override(name, override)

    def _save_override(self, name: str, override: Mapping[str, Any]) -> None:
        packed = orjson.dumps(override)
        self._save(f"{self._key}#{name}", lambda: packed)

    async def _due_changes(self) -> list[Coroutine[Any, Any, None]]:
        """Return the loads and unloads that are due."""
        await self._read_overrides()
        changes: list[Coroutine[Any, Any, None]] = []
        for name in self._declared:
            desired = self._desired(name)
            first = name == self.repository.first.model_name
            if name in self._reconciled:
                changed = self._reconciled[name] != desired
            else:
                changed = first or name in self._overrides or not self.repository.on_demand
            self._reconciled[name] = desired
            if desired is None:
                if changed and not first:
                    changes.append(self.repository.unload(name))
                continue
            # A model loaded on demand is retried only by a request.
            kept = first or not self.repository.on_demand or self.repository.is_serving(name)
            if changed or (kept and self._failed.take_due(desired)):
                changes.append(self._reconcile_model(desired))
        return changes

    async def _read_overrides(self) -> None:
        """Read other replicas' overrides, and end those of an earlier config."""
        found = await asyncio.to_thread(
            lambda: {name: self._read(f"{self._key}#{name}") for name in self._declared}
        )
        for name, packed in found.items():
            # The key-value store may be unreadable, or return an old value.
            override = packed and orjson.loads(packed)
            if override and override["time_s"] > self._overrides.get(name, {}).get("time_s", 0.0):
                self._overrides[name] = override
        for name, override in self._overrides.items():
            if not override.get("ended") and override["declared"] != _digest(self._declared[name]):
                # Its time stays: a replica that has it keeps it until it has the new config, too.
                override["ended"] = True
                self._save_override(name, override)

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

    def _desired(self, name: str) -> ModelConfig | None:
        declared, override = self._declared[name], self._overrides.get(name)
        if override is None or override.get("ended") or override["declared"] != _digest(declared):
            return declared
        desired = override["desired"]
        return desired and declared.model_copy(update=desired)


def _digest(config: ModelConfig) -> str:
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()
