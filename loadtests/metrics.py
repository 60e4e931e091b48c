"""Prometheus metrics of a running load test, as its clients see the service."""

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from loadtests.records import GOOD, Outcome

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class Metrics:
    """Metrics of one load test, served over HTTP if a port is given.

    Parameters
    ----------
    host : str
        Address to listen on.
    port : int or None
        Port to listen on; None serves nothing.
    """

    def __init__(self, host: str, port: int | None) -> None:
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
        if port is not None:
            start_http_server(port, addr=host, registry=registry)

    def observe(self, outcome: int, response_time_s: float, send_delay_s: float) -> None:
        """Record a finished request; `send_delay_s` is NaN if it was never sent."""
        label = str(outcome) if outcome >= 100 else Outcome(outcome).name.lower()
        self._requests.labels(label).inc()
        if outcome in GOOD:
            self._response_time.observe(response_time_s)
        if send_delay_s >= 0:
            self._send_delay.observe(send_delay_s)
