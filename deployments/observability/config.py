"""The configuration of traces: `tracing` in a deployment's `user_config`."""

from pydantic import Field

from deployments.config.validation import StrictModel


class TracingConfig(StrictModel):
    """Export spans of requests to an OpenTelemetry collector."""

    #: Share of the requests to trace, of those whose clients have not decided it (`traceparent`).
    sample_ratio: float = Field(default=0.01, ge=0, le=1)
    #: Where spans go, by OTLP over HTTP.
    endpoint: str = Field(default="http://127.0.0.1:4318/v1/traces", pattern=r"^https?://")
    #: Most requests traced per second, whatever clients decide.
    max_per_s: float = Field(default=100.0, gt=0, allow_inf_nan=False)
