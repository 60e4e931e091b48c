"""Routing as Swayam's RAND: Ray Serve's HAProxy picks a replica at random, a busy one says so.

Ray reads its settings from the environment of the processes that run Serve's controller, HAProxy
and replicas: the environment of `ray start` (or of `ray.init` for a local run), not that of
`serve deploy`. This is the one place that holds them.
"""

#: How often HAProxy tries another replica after a refusal, as RAND's retries.
RETRIES = 5


def serve_environment(max_body_bytes: int = 64 << 10) -> dict[str, str]:
    """Give the environment in which Ray must be started.

    Parameters
    ----------
    max_body_bytes : int
        Largest request that is retried at another replica; HAProxy must hold it whole to send it
        again. A larger one is served, but a refusal of it reaches the client.
    """
    return {
        # Clients talk to HAProxy, HAProxy to the replicas: no Python proxy between them.
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "deployments.middleware.middlewares",
        # RAND: a random replica; a busy one answers 503, and another random one is tried. Inference
        # has no side effects, so what a dying replica left unanswered is sent to another, too.
        "RAY_SERVE_HAPROXY_BALANCE_ALGORITHM": "random(1)",
        "RAY_SERVE_HAPROXY_RETRY_ON": "503 conn-failure empty-response",
        "RAY_SERVE_HAPROXY_RETRIES": str(RETRIES),
        "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(max_body_bytes),
        # A replica that is scaled in stays reachable until every HAProxy has heard of it.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
    }
