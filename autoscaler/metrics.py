"""The metrics of the autoscaler: one for each number of a decision that is worth watching."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Instrument:
    """The name, kind and labels of a metric, for any exporter; buckets are upper bounds."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


LABELS = ("application", "deployment")


def _gauge(name: str, description: str) -> Instrument:
    return Instrument(f"sojourn_autoscaler_{name}", "gauge", description, LABELS)


#: The metric by the field of `autoscaler.decision.Decision` that it shows.
DECISION_INSTRUMENTS = {
    "replicas": _gauge(
        "replicas_decided", "Replicas decided on; in a dry run they are not ordered."
    ),
    "standbys": _gauge("standbys_decided", "Standbys decided on, besides the replicas that serve."),
    "required_replicas": _gauge(
        "replicas_required", "Replicas that the demand requires, before holds and budgets."
    ),
    "arrival_rate_per_s": _gauge("offered_requests_per_second", "Requests that clients offer now."),
    "forecast_per_s": _gauge(
        "forecast_requests_per_second",
        "Requests expected until a replica ordered now has started.",
    ),
    "demand_per_s": _gauge(
        "demand_requests_per_second",
        "Requests that replicas are sized for: forecast with margin, burst factor and backlog.",
    ),
    "predicted_service_level": _gauge(
        "predicted_service_level_ratio",
        "Predicted share of requests in time with the replicas decided on, "
        "if no budget allows fewer.",
    ),
    "sla_rate_per_s": _gauge(
        "sla_rate_requests_per_second",
        "Requests at which one replica keeps the SLA, corrected by measured lateness.",
    ),
    "correction": _gauge(
        "model_correction_ratio",
        "Factor on the SLA rate that replicas report, learned from measured lateness.",
    ),
    "model_error": _gauge("model_error_ratio", "Measured minus predicted share of late requests."),
    "backlog": _gauge("backlog_requests", "Requests that wait beyond what is normal."),
    "horizon_s": _gauge("horizon_seconds", "How far the forecast looks ahead."),
    "silent_replicas": _gauge("silent_replicas", "Replicas that serve but do not report."),
    "stuck_replicas": _gauge(
        "stuck_replicas",
        "Replicas ordered that have not started for much longer than a start takes.",
    ),
    "report_interval_s": _gauge(
        "report_interval_seconds", "Time between two reports of a replica."
    ),
}
