"""Which models a deployment's replicas should have: by its config, and by clients since.

A client's call to load or unload a model reaches one replica. That one writes the wish down in the
cluster's key-value store, where the others find it within a second or so, and new replicas at their
start. A deploy that changes what the config says of the model ends the wish.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import orjson

from deployments.config import ModelConfig, UserConfig
from deployments.hosting.declared import declared_models, revised
from deployments.hosting.repository import ModelRepository
from policy.errors import SojournError

logger = logging.getLogger("sojourn.service")


class ModelWishes:
    """Make a replica's models those that are wanted.

    Parameters
    ----------
    repository : ModelRepository
    configs : list of ModelConfig
        The models as the deployment's `args` have them.
    key : str
        Where the deployment's wishes lie in the store.
    read : callable
        Returns the value of a key, or None. It may block, so a thread calls it.
    save : callable
        Has a key and a function whose result is to be saved under it; it does not wait.
    """

    def __init__(
        self,
        repository: ModelRepository,
        configs: list[ModelConfig],
        *,
        key: str = "models",
        read: Callable[[str], bytes | None] = lambda key: None,
        save: Callable[[str, Callable[[], bytes]], object] = lambda key, content: None,
    ) -> None:
        self.repository = repository
        self._configs = configs
        #: The models as `args` and `user_config` have them.
        self._declared = declared_models(configs, UserConfig())
        self._key, self._read, self._save = key, read, save
        #: What was wanted of each model when it was last acted upon.
        self._followed: dict[str, ModelConfig | None] = {}
        #: The newest wish for each model that is known here; none is ever deleted.
        self._wishes: dict[str, dict[str, Any]] = {}
        self._changing: set[asyncio.Future[object]] = set()

    @property
    def configured(self) -> bool:
        """Whether a configuration is in force."""
        return self.repository.first.configured

    @property
    def config_error(self) -> str | None:
        """Why the latest configuration was rejected."""
        return self.repository.first.config_error

    @config_error.setter
    def config_error(self, error: str | None) -> None:
        self.repository.first.config_error = error

    async def configure(self, user_config: UserConfig) -> None:
        """Apply a configuration, and begin to load the versions that it names.

        Raises
        ------
        InvalidInputError
            It names a model that the deployment does not have, or a version that cannot be meant.
        SojournError
            It does not suit a model.
        """
        declared = declared_models(self._configs, user_config)
        await self.repository.configure(user_config)
        self._declared = declared

    async def start(self) -> None:
        """Load what is wanted, side by side, and wait for it.

        Raises
        ------
        SojournError
            A model cannot be loaded.
        """
        await asyncio.gather(*await self._changes())

    async def follow(self) -> None:
        """Begin to load and unload what is wanted now; the index tells how it goes."""
        for change in await self._changes():
            task = asyncio.ensure_future(change)
            self._changing.add(task)
            task.add_done_callback(self._changing.discard)
            task.add_done_callback(_log_failure)

    async def load(self, name: str, version: str | None = None, weights: str | None = None) -> None:
        """Load a model, or another version of it, here and in all replicas.

        Parameters
        ----------
        name : str
        version : str, optional
            Its label; if `weights` are not given, also its version in the model store.
        weights : str, optional
            ``store://[framework/]name[@version]``.

        Raises
        ------
        NotFoundError
            The deployment has no such model.
        InvalidInputError
            The weights are not in a model store, or a version is asked for without a store.
        SojournError
            It cannot be loaded; no replica is asked to.
        """
        self.repository.config(name)
        declared = self._declared[name]
        wanted = (
            declared if version is None and weights is None else revised(declared, version, weights)
        )
        if await self.repository.load(wanted):
            self._wish(name, wanted)

    async def load_on_demand(self, name: str) -> None:
        """Load a model that a request asks for, in this replica.

        Raises
        ------
        NotFoundError
            The deployment has no such model.
        SojournError
            It cannot be loaded.
        """
        self.repository.config(name)
        await self.repository.load(self._wanted(name) or self._declared[name])

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
        self._wish(name, None)

    def _wish(self, name: str, wanted: ModelConfig | None) -> None:
        """Note a wish here, and write it down for the other replicas."""
        self._followed[name] = wanted
        before_s = self._wishes.get(name, {}).get("time_s", 0.0)
        wish = self._wishes[name] = {
            # Clocks of nodes differ; a wish is newer than those known to whom it was told.
            "time_s": max(time.time(), before_s + 1e-3),
            "declared": _digest(self._declared[name]),
            "wanted": wanted and {"version": wanted.version, "weights": wanted.weights},
        }
        packed = orjson.dumps(wish)
        self._save(f"{self._key}#{name}", lambda: packed)

    async def _changes(self) -> list[Coroutine[Any, Any, object]]:
        """Return what there is to do."""
        found = await asyncio.to_thread(
            lambda: {name: self._read(f"{self._key}#{name}") for name in self._declared}
        )
        for name, packed in found.items():
            # A store that cannot be read says nothing, and one that is slow something old.
            wish = packed and orjson.loads(packed)
            if wish and wish["time_s"] > self._wishes.get(name, {}).get("time_s", 0.0):
                self._wishes[name] = wish
        changes: list[Coroutine[Any, Any, object]] = []
        for name in self._declared:
            wanted = self._wanted(name)
            first = name == self.repository.first.model_name
            if name in self._followed:
                changed = self._followed[name] != wanted
            else:
                changed = first or name in self._wishes or not self.repository.on_demand
            self._followed[name] = wanted
            if changed and wanted is not None:
                changes.append(self.repository.load(wanted))
            elif changed and not first:
                changes.append(self.repository.unload(name))
        return changes

    def _wanted(self, name: str) -> ModelConfig | None:
        declared, wish = self._declared[name], self._wishes.get(name)
        if wish is None or wish["declared"] != _digest(declared):
            return declared
        wanted = wish["wanted"]
        return wanted and declared.model_copy(update=wanted)


def _digest(config: ModelConfig) -> str:
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()


def _log_failure(task: "asyncio.Future[Any]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        level = logging.WARNING if isinstance(error, SojournError) else logging.ERROR
        logger.log(level, "a model is not as wanted: %s", error, exc_info=None)
