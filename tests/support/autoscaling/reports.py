"""Reports of replicas made up for tests."""

from typing import Any

from autoscaler.reports import ReplicaReport


def report(replica_id: str, time_s: float, offered: float, **more: Any) -> ReplicaReport:
    """Return the report of a replica that has answered all that was offered to it so far."""
    values: dict[str, Any] = {
        "offered_total": offered,
        "refused_total": 0.0,
        "queue_length": 0.0,
        "full_batch_size": 32.0,
        "full_batch_ms": 10.8,
        "sla_response_time_ms": 50.0,
        "sla_percentile": 99.0,
        "start_time_s": 10.0,
        "counted_s": time_s,
    }
    return ReplicaReport(replica_id, time_s, **{**values, **more})
