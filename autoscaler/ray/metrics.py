"""The autoscaler's decisions as metrics: `sojourn_autoscaler_*`, through Ray.

Serve's controller exports them, with the prefix `ray_`, where the cluster's Prometheus scrapes.
"""

import functools
from dataclasses import asdict
from typing import Any

from ray.util.metrics import Gauge

from autoscaler.decision import Decision

_TAGS = ("application", "deployment")
#: Name and description of the metric, by the field of a `Decision`.
_GAUGES = {
    "replicas": ("replicas_decided", "Replicas decided on; in a dry run they are not ordered."),
    "required_replicas": (
        "replicas_required",
        "Replicas that the demand requires, before holds and budgets.",
    ),
    "arrival_rate_per_s": ("offered_requests_per_second", "Requests that clients offer now."),
    "forecast_per_s": (
        "forecast_requests_per_second",
        "Requests expected until a replica ordered now has started.",
    ),
    "demand_per_s": (
        "demand_requests_per_second",
        "Requests that replicas are sized for: forecast with margin, burst factor and backlog.",
    ),
    "predicted_service_level": (
        "predicted_service_level_ratio",
        "Predicted share of requests in time with the replicas decided on.",
    ),
    "sla_rate_per_s": (
        "sla_rate_requests_per_second",
        "Requests at which one replica keeps the SLA, corrected by measured lateness.",
    ),
    "correction": (
        "model_correction_ratio",
        "Factor on the SLA rate that replicas report, learned from measured lateness.",
    ),
    "model_error": ("model_error_ratio", "Measured minus predicted share of late requests."),
    "backlog": ("backlog_requests", "Requests that wait beyond what is normal."),
    "horizon_s": ("horizon_seconds", "How far the forecast looks ahead."),
    "silent_replicas": ("silent_replicas", "Replicas that serve but do not report."),
    "stuck_replicas": (
        "stuck_replicas",
        "Replicas ordered that have not started for much longer than a start takes.",
    ),
    "report_interval_s": ("report_interval_seconds", "Time between two reports of a replica."),
}


def export(application: str, deployment: str, decision: Decision) -> None:
    """Set the metrics of a deployment to its decision."""
    tags = {"application": application, "deployment": deployment}
    for field, value in asdict(decision).items():
        if field in _GAUGES and value is not None:
            _gauge(field).set(value, tags)


@functools.cache
def _gauge(field: str) -> Any:
    name, description = _GAUGES[field]
    return Gauge(f"sojourn_autoscaler_{name}", description, _TAGS)
