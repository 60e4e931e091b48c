"""Traces of requests, as OpenTelemetry spans.

Whether a request is traced is decided when it arrives: as its `traceparent` says, else at random.
Until its outcome is known, only the times of its batches are noted. Then its spans are made, all
at once, with those times:

- ``infer``: from the arrival to the outcome, a child of the client's span;
- ``queue``: from the arrival, or from the batch before, to the start of a batch with its rows;
- ``batch``: from there until the event loop has the batch's results;
- ``device``: the part of it for which the model ran.

A request that was split into several batches has the last three for each. The package of the
exporter is optional (``sojourn[tracing]``), and imported only where traces are configured.
"""

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

from deployments.config.user_config import TracingConfig
from deployments.token_bucket import TokenBucket
from policy.errors import InvalidInputError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

    from deployments.observability.request_info import RequestInfo

#: W3C Trace Context: version, trace id, parent id, flags. Versions after 00 may add fields.
_TRACEPARENT = re.compile(
    rb"(?:00(?=.{53}$)|(?!00|ff)[0-9a-f]{2})"
    rb"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(?:-.*)?"
)
_SAMPLED = 0x01


class BatchTimes(NamedTuple):
    """A batch with rows of a traced request, by the clock of `time.monotonic`.

    The event loop started it and had its results at `started_s` and `ended_s`; the model ran for
    `duration_s`.
    """

    started_s: float
    ended_s: float
    duration_s: float
    size: int
    reason: str
    failed: bool


@dataclass(slots=True)
class RequestTrace:
    """Data of a traced request, with the client's valid `traceparent`, collected until its end."""

    tracing: "Tracing"
    arrival_s: float
    rows: int
    traceparent: bytes | None
    batches: list[BatchTimes] = field(default_factory=list)


class Tracing:
    """Decide which requests are traced, and make their spans, which are exported by default."""

    def __init__(
        self,
        model: str,
        version: str,
        make_provider: "Callable[[TracingConfig, str], TracerProvider] | None" = None,
    ) -> None:
        self.on = False
        self._model, self._version = model, version
        self._make_provider = make_provider or export_by_otlp
        self._config: TracingConfig | None = None
        self._provider: TracerProvider | None = None
        self._tracer: Tracer | None = None
        self._bucket = TokenBucket(1.0, 1.0)
        self._random = random.Random()

    def configure(self, config: TracingConfig | None) -> None:
        """Apply a configuration; None traces nothing.

        `InvalidInputError`: the packages for traces are not installed.
        """
        if config == self._config:
            return
        provider = None if config is None else self._make_provider(config, self._model)
        self.close()
        self._config, self._provider = config, provider
        if config is not None and provider is not None:
            self._tracer = provider.get_tracer("sojourn", self._version)
            self._bucket = TokenBucket(config.expert.max_per_s, max(1.0, config.expert.max_per_s))
        self.on = provider is not None

    def close(self) -> None:
        """Export the remaining spans in a separate thread, and trace nothing more."""
        provider, self._provider, self._tracer, self.on = self._provider, None, None, False
        self._config = None
        if provider is not None:
            # The exporter may wait for its collector, which would block the event loop.
            Thread(target=provider.shutdown, daemon=True).start()

    def begin(self, info: "RequestInfo", arrival_s: float, rows: int) -> RequestTrace | None:
        """Return a trace for a request, or None if it is not sampled."""
        config, traceparent = self._config, info.traceparent
        if config is None:
            return None
        found = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
        if found is None:
            traceparent = None
            sampled = 100 * self._random.random() < config.sample_percent
        else:
            sampled = bool(int(found[1], 16) & _SAMPLED)
        if not sampled or not self._bucket.take(arrival_s):
            return None
        return RequestTrace(self, arrival_s, rows, traceparent)

    def end(self, trace: RequestTrace, info: "RequestInfo", status: int) -> None:
        """Make the spans of a request."""
        tracer = self._tracer
        if tracer is None:
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        now_s = time.monotonic()
        epoch_ns = time.time_ns() - round(1e9 * now_s)

        def span(
            name: str,
            parent: "Context | None",
            start_s: float,
            kind: SpanKind = SpanKind.INTERNAL,
            **attributes: str | int | float | bool,
        ) -> "Span":
            return tracer.start_span(
                name, parent, kind, attributes, start_time=epoch_ns + round(1e9 * start_s)
            )

        def finish(span: "Span", end_s: float) -> None:
            span.end(epoch_ns + round(1e9 * end_s))

        root = span("infer", _remote_context(trace.traceparent), trace.arrival_s, SpanKind.SERVER)
        root.set_attributes(
            {
                "http.request.method": "POST",
                "http.response.status_code": status,
                "sojourn.model": self._model,
                "sojourn.rows": trace.rows,
                "sojourn.request_id": info.request_id.decode("latin-1"),
            }
        )
        if info.token is not None:
            root.set_attribute("sojourn.token", info.token)
        if status >= 500:
            root.set_attribute("error.type", str(status))
            root.set_status(Status(StatusCode.ERROR))
        inside = set_span_in_context(root)
        waits_since_s = trace.arrival_s
        for batch in trace.batches:
            finish(span("queue", inside, waits_since_s), batch.started_s)
            whole = span("batch", inside, batch.started_s)
            whole.set_attributes(
                {
                    "sojourn.batch.size": batch.size,
                    "sojourn.batch.reason": batch.reason,
                    "sojourn.batch.failed": batch.failed,
                }
            )
            device = span("device", set_span_in_context(whole), batch.started_s)
            finish(device, min(batch.started_s + batch.duration_s, batch.ended_s))
            finish(whole, batch.ended_s)
            waits_since_s = batch.ended_s
        if not trace.batches and status != 200:  # a pipeline records no batches
            finish(span("queue", inside, waits_since_s), now_s)
        finish(root, now_s)


def export_by_otlp(config: TracingConfig, model: str) -> "TracerProvider":
    """Return a provider that exports spans by OTLP over HTTP, from a separate thread.

    `InvalidInputError`: the packages for that are not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    except ImportError:
        raise InvalidInputError("tracing: needs pip install 'sojourn[tracing]'") from None
    provider = TracerProvider(sampler=ALWAYS_ON, resource=Resource.create({"service.name": model}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=config.endpoint)))
    return provider


def _remote_context(traceparent: bytes | None) -> "Context | None":
    if traceparent is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent.decode("ascii")})
