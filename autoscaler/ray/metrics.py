"""What the autoscaler decided, as metrics: `sojourn_autoscaler_*`, through Ray's metrics.

Serve's controller exports them, with the prefix `ray_`, where the cluster's Prometheus scrapes.
"""

import functools
from dataclasses import asdict
from typing import Any

from ray.util.metrics import Gauge

from autoscaler.decision import Decision

_TAGS = ("application", "deployment")
#: By the field of a decision: the metric's name, and what it says.
_GAUGES = {
    "replicas": ("replicas_decided", "Replicas decided on; in a dry run only said."),
    "required_replicas": (
        "replicas_required",
        "Replicas that the demand calls for, before holds and budgets.",
    ),
    "arrival_rate_per_s": ("offered_requests_per_second", "What clients offer now."),
    "forecast_per_s": (
        "forecast_requests_per_second",
        "What is expected until a replica ordered now has started.",
    ),
    "demand_per_s": (
        "demand_requests_per_second",
        "What replicas are counted for: forecast, its margin, and what has piled up.",
    ),
    "predicted_service_level": (
        "predicted_service_level_ratio",
        "Share of the requests predicted in time with the replicas decided on.",
    ),
    "sla_rate_per_s": (
        "sla_rate_requests_per_second",
        "What one replica takes under the SLA, corrected by what was measured.",
    ),
    "correction": (
        "model_correction_ratio",
        "What the rate that the replicas tell was multiplied by, from what was measured.",
    ),
    "model_error": ("model_error_ratio", "Measured less predicted share of late requests."),
    "backlog": ("backlog_requests", "Requests that wait beyond what is ordinary."),
    "horizon_s": ("horizon_seconds", "How far the forecast looks ahead."),
}


def export(application: str, deployment: str, decision: Decision) -> None:
    """Set the metrics of a deployment to what was decided for it."""
    tags = {"application": application, "deployment": deployment}
    for field, value in asdict(decision).items():
        if field in _GAUGES and value is not None:
            _gauge(field).set(value, tags)


@functools.cache
def _gauge(field: str) -> Any:
    name, description = _GAUGES[field]
    return Gauge(f"sojourn_autoscaler_{name}", description, _TAGS)
