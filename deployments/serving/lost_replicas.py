"""The replicas of a deployment that were lost, as the GCS, Ray's directory, knows them."""

from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray._private.state import actors
from ray.core.generated.common_pb2 import ActorDiedErrorContext as Died

#: The latest ones that are reported.
MOST = 20
#: Why actors end that Serve stops: for a scale-down, a new version or failed health checks.
_STOPPED = (Died.RAY_KILL, Died.OUT_OF_SCOPE, Died.REF_DELETED)
#: The directory's own words around the cause: what is known already, and what it may have been.
_BEFORE_CAUSE, _AFTER_CAUSE = "Worker exit detail: ", " Some common causes"


def read_lost_replicas(application: str, deployment: str) -> list[dict[str, Any]]:
    """Ask the directory for `lost_replicas`; this blocks."""
    job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
    dead = actors(job_id=job, actor_state_name="DEAD")
    return lost_replicas(dead.values(), application, deployment)


def lost_replicas(
    dead: Iterable[Mapping[str, Any]], application: str, deployment: str
) -> list[dict[str, Any]]:
    """Return which replicas died, when and why, the latest ones, oldest first."""
    prefix = f"SERVE_REPLICA::{application}#{deployment}#"  # as Serve names their actors
    found = []
    for actor in dead:
        name, cause = actor["Name"], actor["DeathCause"]
        if name.startswith(prefix) and cause.actor_died_error_context.reason not in _STOPPED:
            context = getattr(cause, cause.WhichOneof("context") or "", None)
            message = getattr(context, "error_message", "for an unknown reason")
            reason = message.rpartition(_BEFORE_CAUSE)[2].partition(_AFTER_CAUSE)[0]
            time_s, replica = 1e-3 * actor["EndTime"], name.removeprefix(prefix)
            found.append({"time_s": time_s, "replica": replica, "reason": reason})
    return sorted(found, key=lambda one: one["time_s"])[-MOST:]
