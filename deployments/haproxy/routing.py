"""Settings that make Ray Serve's HAProxy route requests as RAND, Swayam's load balancing, does.

HAProxy sends a request to a random replica; a busy replica refuses it, and HAProxy tries another.
Ray reads these settings from the environment of Serve's controller, HAProxy and the replicas: the
environment of ``ray start``, or of ``ray.init`` in a local run, but not that of ``serve deploy``.
"""

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from deployments.haproxy.command import HELD_MS, RAYS_HAPROXY
from deployments.haproxy.ray_config import backend_name
from policy.try_delays import RETRIES

#: The program that runs HAProxy for Ray, and starts it again: `deployments.haproxy.supervisor`.
SUPERVISOR = "sojourn-haproxy"

#: Clients that HAProxy serves at a time, if it may open as many files.
MAX_CLIENTS = 16_384

#: The share of the SLA's response time for which requests are held while there is no replica. The
#: rest is for what a request has spent at a replica that died, and for its refusal.
HELD_SHARE = 0.5

_RETRIES = "RAY_SERVE_HAPROXY_RETRIES"


def serve_environment() -> dict[str, str]:
    """Return the environment variables with which Ray must be started.

    `deployments.haproxy.request_environment` has the variables that depend on the model.
    """
    return {
        # HAProxy connects clients to replicas directly, without a Python proxy.
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "deployments.http.middleware.middlewares",
        # Once HAProxy has a fifth of its files open, it closes connections to replicas rather than
        # keep them. With Ray's 4,096 that is at 1,000 clients: nearly every request then opens a
        # connection, and waits for the replica to accept it.
        "RAY_SERVE_HAPROXY_MAXCONN": str(MAX_CLIENTS),
        # Ray has its workers, and so replicas and HAProxy, give way to all other processes: by 15.
        # Then the solver of a replica, which gives way by 10 more, gets two fifths as much CPU.
        "RAY_worker_niceness": "0",
        # A busy replica answers 503, and HAProxy tries another. Inference has no side effects, so
        # HAProxy may also resend requests that a dying replica left unanswered.
        "RAY_SERVE_HAPROXY_BALANCE_ALGORITHM": "random(1)",
        "RAY_SERVE_HAPROXY_RETRY_ON": "503 conn-failure empty-response",
        _RETRIES: str(RETRIES),
        # A replica that refuses one connection is left out until it passes two checks. Of five
        # retries, three for each of two dead replicas would be too many, and HAProxy closes a kept
        # connection without an answer when it has no retry left.
        "RAY_SERVE_HAPROXY_OBSERVE_ERROR_LIMIT": "1",
        # A client that sends or takes nothing for so long is gone; Ray would wait for an hour.
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "30",
        # For HAProxy's metrics, a Python process of Ray's parses one log line per request: 15 µs of
        # CPU each. The replicas count their requests themselves.
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        # A draining replica stays reachable until every HAProxy has learned of it.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
        # Ray restarts its HAProxy after three failed checks, which come every 10 s otherwise.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
        # On a busy machine it takes longer than 5 s to start, and Ray would kill it three times.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "20",
    }


def retries_in_force() -> int:
    """Return how often this node's HAProxy tries another replica."""
    value = os.environ.get(_RETRIES, "")
    return int(value) if value.isdecimal() else RETRIES


def supervisor_environment(path: Path | None = None) -> dict[str, str]:
    """Return the environment variables with which Ray runs `SUPERVISOR` as its HAProxy.

    `path` is where the program is on every node; by default, where it is installed with this
    Python. The result is empty if it is not installed there: HAProxy then runs alone.
    """
    installed = path or Path(sysconfig.get_path("scripts")) / SUPERVISOR
    if path is None and not installed.is_file():
        return {}
    return {
        RAYS_HAPROXY: str(installed),
        # The supervisor judges the replicas (`deployments.haproxy.server_checks`). HAProxy checks
        # them often, and leaves one out itself only after 15 s of silence.
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "500ms",
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_FALL": "20",
    }


def held_environment(response_times_ms: Mapping[str, float]) -> dict[str, str]:
    """Return the variable `HELD_MS` for applications with these response times as their SLAs."""
    held = {backend_name(name): int(HELD_SHARE * ms) for name, ms in response_times_ms.items()}
    return {HELD_MS: ",".join(f"{name}={max(1, ms)}" for name, ms in held.items())}
