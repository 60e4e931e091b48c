"""Prometheus metrics of a running load test, from its clients' view."""

import socket

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.multiprocess import MultiProcessCollector

from loadtests.records import GOOD, outcome_name
from policy.errors import InvalidInputError

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


#: The folder of the processes' metrics, if Prometheus scrapes the test.
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def check_address(host: str, port: int) -> None:
    """Raise `InvalidInputError` if metrics cannot be served at this address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        # Python's message includes the address already.
        reason = str(error.strerror or error).partition(" (")[0]
        raise InvalidInputError(
            f"--metrics-port: cannot listen at {host}:{port}: {reason}"
        ) from None


def serve_metrics(host: str, port: int) -> None:
    """Serve the sum of the metrics that all processes keep in the folder `FOLDER_VARIABLE`."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    start_http_server(port, addr=host, registry=registry)


class Metrics:
    """Metrics of one process of a load test."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._requests = Counter(
            "sojourn_loadtest_requests",
            "Finished requests by outcome: ok, answered (perhaps right), wrong, timeout, "
            "connection, or an HTTP status.",
            ["outcome"],
            registry=registry,
        )
        self._response_time = Histogram(
            "sojourn_loadtest_response_time_seconds",
            "Time from when a request was due to its answer, for answers not known to be wrong.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._send_delay = Histogram(
            "sojourn_loadtest_send_delay_seconds",
            "Time from when a request was due until it was sent.",
            buckets=_SECONDS,
            registry=registry,
        )

    def observe(self, outcome: int, response_time_s: float, send_delay_s: float) -> None:
        """Record a finished request; `send_delay_s` is NaN if it was never sent."""
        self._requests.labels(outcome_name(outcome)).inc()
        if outcome in GOOD:
            self._response_time.observe(response_time_s)
        if send_delay_s >= 0:
            self._send_delay.observe(send_delay_s)
