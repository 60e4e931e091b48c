"""Which models a deployment's replicas should have: by its config, and by clients since.

A client's call to load or unload a model reaches one replica. That one writes the wish down in the
cluster's key-value store, where the others find it within a second or so, and new replicas at their
start. A deploy that changes what the config says of the model ends the wish.
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
    clock : callable
        Returns the time in s, for the pauses between tries to load a version.
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
        #: What was wanted of each model when it was last acted upon.
        self._followed: dict[str, ModelConfig | None] = {}
        #: The newest wish for each model that is known here; none is ever deleted.
        self._wishes: dict[str, dict[str, Any]] = {}
        self._failed = FailedLoads(clock)
        self._changing: set[asyncio.Future[None]] = set()
        self._started = False
        #: Done when what the config names is loaded.
        self._in_force: asyncio.Future[None] | None = None
        self._load_error: str | None = None

    @property
    def configured(self) -> bool:
        """Whether a configuration is in force, and its models loaded."""
        return self._started

    @property
    def config_error(self) -> str | None:
        """Why the latest configuration was rejected."""
        return self.repository.first.config_error

    @config_error.setter
    def config_error(self, error: str | None) -> None:
        self.repository.first.config_error = error

    async def configure(self, user_config: UserConfig) -> "asyncio.Future[None] | None":
        """Apply a configuration, and load the versions that it names.

        The first one waits for them. A later one lets what serves go on until they are loaded.

        Returns
        -------
        Future or None
            Done when they are loaded, cancelled if something else is configured before; None: they
            are.

        Raises
        ------
        InvalidInputError
            It names a model that the deployment does not have, or a version that cannot be meant.
        SojournError
            It does not suit a model, or is the first one and a model cannot be loaded.
        """
        declared = declared_models(self._configs, user_config)
        await self.repository.configure(user_config)
        self._declared = declared
        self._failed.forgive()
        if not self._started:
            await self._start()
            return None
        if self._in_force is not None:
            self._in_force.cancel()
        self._in_force = asyncio.get_running_loop().create_future()
        await self.follow()
        return self._in_force

    async def _start(self) -> None:
        """Load what is wanted, side by side."""
        ends = await asyncio.gather(*await self._changes(), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end
        self._started = True

    async def follow(self) -> None:
        """Begin to load and unload what is wanted now; the index tells how it goes."""
        for change in await self._changes():
            task = asyncio.ensure_future(change)
            self._changing.add(task)
            task.add_done_callback(self._changed)
        self._settle()

    def _changed(self, task: "asyncio.Future[None]") -> None:
        self._changing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            level = logging.WARNING if isinstance(error, SojournError) else logging.ERROR
            logger.log(level, "a model is not as wanted: %s", error, exc_info=None)
        self._settle()

    def _settle(self) -> None:
        """Say that the configuration is in force, if all that it names is loaded."""
        if self._changing or any(config in self._failed for config in self._declared.values()):
            return
        if self._in_force is not None and not self._in_force.done():
            self._in_force.set_result(None)
        if self._load_error is not None and self.config_error == self._load_error:
            self.config_error = None
        self._load_error = None

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
            self._failed.forget(wanted)
            self._wish(name, wanted)

    async def load_on_demand(self, name: str) -> None:
        """Load a model that a request asks for, in this replica.

        Raises
        ------
        NotFoundError
            The deployment has no such model.
        SojournError
            It cannot be loaded, or could not a moment ago.
        """
        self.repository.config(name)
        wanted = self._wanted(name) or self._declared[name]
        self._failed.raise_if_early(wanted)
        await self._load(wanted)

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
        self._write_down(name, wish)

    def _write_down(self, name: str, wish: Mapping[str, Any]) -> None:
        packed = orjson.dumps(wish)
        self._save(f"{self._key}#{name}", lambda: packed)

    async def _changes(self) -> list[Coroutine[Any, Any, None]]:
        """Return what there is to do."""
        await self._read_wishes()
        changes: list[Coroutine[Any, Any, None]] = []
        for name in self._declared:
            wanted = self._wanted(name)
            first = name == self.repository.first.model_name
            if name in self._followed:
                changed = self._followed[name] != wanted
            else:
                changed = first or name in self._wishes or not self.repository.on_demand
            self._followed[name] = wanted
            if wanted is None:
                if changed and not first:
                    changes.append(self.repository.unload(name))
                continue
            # What a request loads when it needs it is not tried without one.
            kept = first or not self.repository.on_demand or self.repository.is_serving(name)
            if changed or (kept and self._failed.take_due(wanted)):
                changes.append(self._follow(wanted))
        return changes

    async def _read_wishes(self) -> None:
        """Take in what clients have asked other replicas for, and end what a deploy has ended."""
        found = await asyncio.to_thread(
            lambda: {name: self._read(f"{self._key}#{name}") for name in self._declared}
        )
        for name, packed in found.items():
            # A store that cannot be read says nothing, and one that is slow something old.
            wish = packed and orjson.loads(packed)
            if wish and wish["time_s"] > self._wishes.get(name, {}).get("time_s", 0.0):
                self._wishes[name] = wish
        for name, wish in self._wishes.items():
            if not wish.get("ended") and wish["declared"] != _digest(self._declared[name]):
                # Its time stays: a replica that has it goes on until it has the new config, too.
                wish["ended"] = True
                self._write_down(name, wish)

    async def _follow(self, wanted: ModelConfig) -> None:
        """Load what is wanted; say so if the config wants it and it cannot be."""
        try:
            await self._load(wanted)
        except SojournError as error:
            if wanted == self._declared[wanted.name]:
                before, self._load_error = self._load_error, f"{wanted.name}: {error}"
                # What a later config was rejected for matters more.
                if self.config_error in (None, before):
                    self.config_error = self._load_error
            raise

    async def _load(self, wanted: ModelConfig) -> None:
        try:
            await self.repository.load(wanted)
        except Exception as error:
            self._failed.note(wanted, error)
            raise
        self._failed.forget(wanted)

    def _wanted(self, name: str) -> ModelConfig | None:
        declared, wish = self._declared[name], self._wishes.get(name)
        if wish is None or wish.get("ended") or wish["declared"] != _digest(declared):
            return declared
        wanted = wish["wanted"]
        return wanted and declared.model_copy(update=wanted)


def _digest(config: ModelConfig) -> str:
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()
