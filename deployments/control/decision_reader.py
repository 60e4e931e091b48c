"""Read the autoscaler's decisions, for `GET /sojourn/autoscaler`."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from autoscaler.scaled_deployments import log_key

#: Minimum time between two reads of the log.
READ_PERIOD_S = 1.0
#: The longest that anybody waits for a read; without the GCS, Ray's directory, it takes far longer.
READ_TIMEOUT_S = 0.5


def replicas_in(content: Mapping[str, Any]) -> int:
    """Return the number of replicas after the newest decision; 1 if there is none."""
    newest = content.get("newest") or {}
    key = "target_replicas" if content.get("dry_run") else "replicas"
    return max(1, int(newest.get(key) or 1))


class DecisionReader:
    """Read the log that a deployment's autoscaler writes in Serve's controller.

    `read` returns the value of a key, or None. It may block, so a thread calls it.
    """

    def __init__(
        self, application: str, deployment: str, read: Callable[[str], bytes | None]
    ) -> None:
        self._key = log_key(application, deployment)
        self._read = read
        self._read_s = -math.inf
        self._reading: asyncio.Task[bytes | None] | None = None
        self._content: Mapping[str, Any] = {
            "application": application,
            "deployment": deployment,
            "dry_run": False,
            "newest": None,
            "decisions": [],
        }

    async def content(self) -> Mapping[str, Any]:
        """Return the log, read again if the last read is `READ_PERIOD_S` ago or more.

        While a read is in progress, and where it finds nothing, this is the last log that was read.
        """
        if self._reading is None and time.monotonic() - self._read_s >= READ_PERIOD_S:
            # Concurrent calls return the last log instead of reading, too.
            self._read_s = time.monotonic()
            self._reading = asyncio.create_task(asyncio.to_thread(self._read, self._key))
            self._reading.add_done_callback(self._take)
            await asyncio.wait([self._reading], timeout=READ_TIMEOUT_S)
        return self._content

    def _take(self, reading: "asyncio.Task[bytes | None]") -> None:
        self._reading = None
        if not reading.cancelled() and (content := reading.result()) is not None:
            self._content = orjson.loads(content)
