"""Read the autoscaler's decisions, for `GET /sojourn/autoscaler`."""

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from autoscaler.scaled_deployments import log_key
from deployments.control.background_reader import BackgroundReader

#: Minimum time between two reads of the log.
READ_PERIOD_S = 1.0


def replicas_in(content: Mapping[str, Any]) -> int:
    """Return the number of replicas after the newest decision; 1 if there is none."""
    newest = content.get("newest") or {}
    key = "target_replicas" if content.get("dry_run") else "replicas"
    return max(1, int(newest.get(key) or 1))


def decision_reader(
    application: str, deployment: str, read: Callable[[str], bytes | None]
) -> BackgroundReader[Mapping[str, Any]]:
    """Return a reader of the log that a deployment's autoscaler writes in Serve's controller.

    `read` returns the value of a key, or None.
    """

    def read_log() -> Mapping[str, Any] | None:
        content = read(log_key(application, deployment))
        return None if content is None else orjson.loads(content)

    first = {
        "application": application,
        "deployment": deployment,
        "dry_run": False,
        "newest": None,
        "decisions": [],
    }
    return BackgroundReader(read_log, first, READ_PERIOD_S)
