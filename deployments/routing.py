"""Settings that make Ray Serve's HAProxy route requests as RAND, Swayam's load balancing, does.

HAProxy sends a request to a random replica; a busy replica refuses it, and HAProxy tries another.
Ray reads these settings from the environment of Serve's controller, HAProxy and the replicas: the
environment of ``ray start``, or of ``ray.init`` in a local run, but not that of ``serve deploy``.
"""

import sysconfig
from pathlib import Path

from policy.errors import InvalidInputError

#: How many times HAProxy tries another replica after a refusal: RAND's retries.
RETRIES = 5
#: HAProxy's algorithm for each `--balance`: a random replica, as in RAND; the less busy of two
#: random ones; or the least busy of all, as far as this HAProxy knows.
BALANCES = {
    "random": "random(1)",
    "power-of-two": "random(2)",
    "least-connections": "leastconn",
}


#: The program that runs HAProxy for Ray, and starts it again: `deployments.haproxy.supervisor`.
SUPERVISOR = "sojourn-haproxy"


def serve_environment(max_body_bytes: int = 64 << 10, balance: str = "random") -> dict[str, str]:
    """Return the environment variables with which Ray must be started.

    Parameters
    ----------
    max_body_bytes : int
        Largest request that HAProxy can retry, since it must buffer a whole request to send it
        again. Larger requests are served, but a replica's refusal goes to the client.
    balance : str
        A key of `BALANCES`.

    Returns
    -------
    dict of str to str

    Raises
    ------
    InvalidInputError
        `balance` is not a key of `BALANCES`.
    """
    if balance not in BALANCES:
        raise InvalidInputError(f"balance: must be one of {', '.join(BALANCES)}, not {balance!r}")
    return {
        # HAProxy connects clients to replicas directly, without a Python proxy.
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "deployments.middleware.middlewares",
        # A busy replica answers 503, and HAProxy tries another. Inference has no side effects, so
        # HAProxy may also resend requests that a dying replica left unanswered.
        "RAY_SERVE_HAPROXY_BALANCE_ALGORITHM": BALANCES[balance],
        "RAY_SERVE_HAPROXY_RETRY_ON": "503 conn-failure empty-response",
        "RAY_SERVE_HAPROXY_RETRIES": str(RETRIES),
        "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(max_body_bytes),
        # For HAProxy's metrics, a Python process of Ray's parses one log line per request: 15 µs of
        # CPU each. The replicas count their requests themselves.
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        # A draining replica stays reachable until every HAProxy has learned of it.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
        # Ray restarts its HAProxy after three failed checks, which come every 10 s otherwise.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    }


def supervisor_environment(path: Path | None = None) -> dict[str, str]:
    """Return the environment variable with which Ray runs `SUPERVISOR` as its HAProxy.

    Parameters
    ----------
    path : Path, optional
        Where the program is on every node; where it is installed with this Python by default.

    Returns
    -------
    dict of str to str
        Empty if it is not installed: HAProxy then runs alone.
    """
    installed = path or Path(sysconfig.get_path("scripts")) / SUPERVISOR
    if path is None and not installed.is_file():
        return {}
    return {"RAY_SERVE_HAPROXY_BINARY_PATH": str(installed)}
