"""Routing as Swayam's RAND: Ray Serve's HAProxy picks a replica at random, a busy one says so.

Ray reads its settings from the environment of the processes that run Serve's controller, HAProxy
and replicas: the environment of `ray start` (or of `ray.init` for a local run), not that of
`serve deploy`. This is the one place that holds them.
"""

from policy.errors import InvalidInputError

#: How often HAProxy tries another replica after a refusal, as RAND's retries.
RETRIES = 5
#: How HAProxy chooses the replica to try, by the name we give it: at random, as RAND does; of two
#: at random the less busy one; or the least busy of all, as far as one HAProxy can tell.
BALANCES = {
    "random": "random(1)",
    "power-of-two": "random(2)",
    "least-connections": "leastconn",
}


def serve_environment(max_body_bytes: int = 64 << 10, balance: str = "random") -> dict[str, str]:
    """Give the environment in which Ray must be started.

    Parameters
    ----------
    max_body_bytes : int
        Largest request that is retried at another replica; HAProxy must hold it whole to send it
        again. A larger one is served, but a refusal of it reaches the client.
    balance : str
        A key of `BALANCES`.

    Raises
    ------
    InvalidInputError
        There is no such balance.
    """
    if balance not in BALANCES:
        raise InvalidInputError(f"balance: must be one of {', '.join(BALANCES)}, not {balance!r}")
    return {
        # Clients talk to HAProxy, HAProxy to the replicas: no Python proxy between them.
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "deployments.middleware.middlewares",
        # RAND: a random replica; a busy one answers 503, and another is tried. Inference
        # has no side effects, so what a dying replica left unanswered is sent to another, too.
        "RAY_SERVE_HAPROXY_BALANCE_ALGORITHM": BALANCES[balance],
        "RAY_SERVE_HAPROXY_RETRY_ON": "503 conn-failure empty-response",
        "RAY_SERVE_HAPROXY_RETRIES": str(RETRIES),
        "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(max_body_bytes),
        # HAProxy would write a line for each request, and a Python process of Ray's count it: 15 µs
        # of CPU each. The replicas count what they answer.
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        # A replica that is scaled in stays reachable until every HAProxy has heard of it.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
    }
