"""What the autoscaler decided, as metrics: `sojourn_autoscaler_*`, through Ray's metrics.

Serve's controller exports them, with the prefix `ray_`, where the cluster's Prometheus scrapes.
"""

import functools
from dataclasses import asdict
from typing import Any

from ray.util.metrics import Gauge

from autoscaler.controller import Decision

_TAGS = ("application", "deployment")
#: By the field of a decision: the metric's name, what it says, and what makes base units of it.
_GAUGES = {
    "replicas": ("replicas_decided", "Replicas decided on; in a dry run only said.", 1),
    "required_replicas": (
        "replicas_required",
        "Replicas that the demand calls for, before holds and budgets.",
        1,
    ),
    "arrival_rate_per_s": ("offered_requests_per_second", "What clients offer now.", 1),
    "forecast_per_s": (
        "forecast_requests_per_second",
        "What is expected until a replica ordered now has started.",
        1,
    ),
    "demand_per_s": (
        "demand_requests_per_second",
        "What replicas are counted for: forecast, its margin, and what has piled up.",
        1,
    ),
    "predicted_service_level": (
        "predicted_service_level_ratio",
        "Share of the requests predicted in time with the replicas decided on.",
        1,
    ),
    "predicted_percentile_ms": (
        "predicted_percentile_seconds",
        "Response time predicted at the SLA's percentile.",
        1e-3,
    ),
    "backlog": ("backlog_requests", "Requests that wait beyond what is ordinary.", 1),
    "horizon_s": ("horizon_seconds", "How far the forecast looks ahead.", 1),
}


def export(application: str, deployment: str, decision: Decision) -> None:
    """Set the metrics of a deployment to what was decided for it."""
    tags = {"application": application, "deployment": deployment}
    for field, value in asdict(decision).items():
        if field in _GAUGES and value is not None:
            _gauge(field).set(_GAUGES[field][2] * value, tags)


@functools.cache
def _gauge(field: str) -> Any:
    name, description, _ = _GAUGES[field]
    return Gauge(f"sojourn_autoscaler_{name}", description, _TAGS)
