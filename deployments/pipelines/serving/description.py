"""What ``GET /sojourn/pipeline`` tells of a running pipeline."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deployments.pipelines.serving.metrics import measured_ms

if TYPE_CHECKING:
    from deployments.pipelines.serving.service import PipelineService


def describe(service: "PipelineService") -> Mapping[str, Any]:
    """Return the queues, counts, stages and scaling of a pipeline."""
    core, sla = service.pipeline.core, service.user_config.sla
    least_ms = [stage.latency_ms(1) for stage in core.stages]
    total_ms = sum(least_ms)
    stages = [
        {
            "name": stage.name,
            "place": made.place,
            "workers": stage.workers,
            "busy": stage.busy,
            "queue_length": stage.waiting,
            "in_service": stage.in_service,
            "items": stage.items,
            "batches": stage.batches,
            "mean_batch_size": stage.batched / stage.batches if stage.batches else None,
            "workers_lost": stage.deaths,
            "lost": stage.lost,
            "latency_ms": least,
            "budget_ms": made.budget_ms
            or (sla.response_time_ms * least / total_ms if total_ms else None),
        }
        for stage, made, least in zip(core.stages, service.pipeline.stages, least_ms, strict=True)
    ]
    return {
        "name": service.model_name,
        "replica": service.replica,
        "sla_in_words": sla.objective.in_words(),
        "requests": {
            "offered": core.offered,
            "open": len(core.open),
            "completed": core.completed,
            "refused": core.refused,
            "late": core.late,
            "failed": core.failed,
            "cancelled": core.cancelled,
        },
        "expected_ms": core.expected_ms(),
        "measured_ms": measured_ms(core),
        "bottleneck": core.bottleneck().name,
        "stages": stages,
        "scaling": _scaling(service),
    }


def _scaling(service: "PipelineService") -> Mapping[str, Any] | None:
    scaler, config = service.autoscaler, service.config.autoscaling
    if scaler is None or config is None:
        return None
    return {
        "margin": scaler.scaler.margin,
        "workers_needed": scaler.workers,
        "items_per_request": scaler.items_per_request,
        "replicas_needed": scaler.replica_needs(),
    }
