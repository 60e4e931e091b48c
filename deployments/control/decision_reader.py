"""What the autoscaler decided, as a replica tells it: the content of `GET /sojourn/autoscaler`."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from autoscaler.scaled_deployments import log_key

#: What the autoscaler wrote is read again after this long.
READ_PERIOD_S = 1.0


class DecisionReader:
    """Reads the log that a deployment's autoscaler writes from Serve's controller.

    Parameters
    ----------
    application, deployment : str
    read : callable
        Gives what is under a key, or None; it may wait, so a thread calls it.
    """

    def __init__(
        self, application: str, deployment: str, read: Callable[[str], bytes | None]
    ) -> None:
        self._key = log_key(application, deployment)
        self._read = read
        self._read_s = -math.inf
        self._content: Mapping[str, Any] = {
            "application": application,
            "deployment": deployment,
            "dry_run": False,
            "newest": None,
            "decisions": [],
        }

    async def content(self) -> Mapping[str, Any]:
        """Give the log as it was at most `READ_PERIOD_S` ago."""
        if time.monotonic() - self._read_s >= READ_PERIOD_S:
            # Who asks meanwhile is given what there is.
            self._read_s = time.monotonic()
            content = await asyncio.to_thread(self._read, self._key)
            if content is not None:
                self._content = orjson.loads(content)
        return self._content
