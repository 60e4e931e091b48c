"""A replica's reaction to a wrong `user_config`.

A replica that runs keeps the configuration it has. One that starts has none: it takes the last good
one of its deployment from the cluster's store, so that a typo does not keep replicas from starting,
neither for more load nor in place of a dead one.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import orjson

from policy.errors import SojournError

logger = logging.getLogger("sojourn.service")

Config = TypeVar("Config", contravariant=True)


class Configurable(Protocol[Config]):
    """A service whose configuration may change while it runs."""

    #: Why the latest configuration was rejected.
    config_error: str | None

    @property
    def configured(self) -> bool:
        """Whether a configuration is in force."""

    async def configure(self, user_config: Config) -> "asyncio.Future[None] | None":
        """Apply a configuration, or raise a `SojournError` and keep the present one.

        A future is done when the configuration has proved good; None: it has.
        """


class LastGoodConfig:
    """The last good `user_config` of a deployment, in a store that outlives the replica.

    Each model of the deployment has one of its own. `read` may block, so a thread calls it; `save`
    has a key and a function whose result is to be saved, and does not wait.
    """

    def __init__(
        self,
        application: str,
        deployment: str,
        model: str,
        read: Callable[[str], bytes | None],
        save: Callable[[str, Callable[[], bytes]], object],
    ) -> None:
        self._key = f"user_config#{application}#{deployment}#{model}"
        self._read = read
        self._save = save

    def keep(self, content: Mapping[str, Any]) -> None:
        packed = orjson.dumps(content)
        self._save(self._key, lambda: packed)

    async def recall(self) -> dict[str, Any] | None:
        packed = await asyncio.to_thread(self._read, self._key)
        if packed is None:
            return None
        content: dict[str, Any] = orjson.loads(packed)
        return content


async def apply_user_config(
    service: Configurable[Config],
    content: Mapping[str, Any],
    last_good: LastGoodConfig,
    parse: Callable[[Mapping[str, Any]], Config],
) -> None:
    """Apply a `user_config`, or say why not, and use the last good one.

    `SojournError`: it is invalid, the replica has no earlier one, and its deployment no other.
    """
    try:
        proven = await service.configure(parse(content))
    except SojournError as error:
        if not service.configured:
            kept = await last_good.recall()
            if kept is None or kept == content:
                raise
            await service.configure(parse(kept))
            # The service runs now, so the new config is tried again while the old one serves.
            await apply_user_config(service, content, last_good, parse)
            if service.config_error is not None:
                service.config_error += "; the last good user_config is in force"
            return
        service.config_error = str(error)
        logger.error(
            "user_config rejected; the previous one stays in force, with its tokens: %s", error
        )
        return
    service.config_error = None
    if proven is None:
        last_good.keep(content)
        return

    def keep(end: "asyncio.Future[None]") -> None:
        if not end.cancelled():
            last_good.keep(content)

    proven.add_done_callback(keep)
