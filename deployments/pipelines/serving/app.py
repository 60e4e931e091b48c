"""The HTTP interface of a pipeline: the interface of a model, and details of the stages."""

from collections.abc import Mapping
from typing import Any

from deployments.console.planner import Planning
from deployments.http.answers import Answer, json_answer
from deployments.http.app import InferenceApp
from deployments.pipelines.serving.metrics import OUTCOMES, measured_ms, metrics_text
from deployments.pipelines.serving.service import PipelineService

_PATH, _METRICS = "/sojourn/pipeline", "/metrics"


class PipelineApp(InferenceApp):
    def __init__(self, service: PipelineService, server_version: str) -> None:
        self._pipeline_service = service
        super().__init__(
            service, server_version, more={_PATH: self._describe, _METRICS: self._metrics}
        )

    def reports(self) -> list[Mapping[str, Any]]:
        service = self._pipeline_service
        return [{**service.explain(), "pipeline": describe(service)}]

    def planning(self) -> Planning:
        return self._pipeline_service.planning

    def _describe(self) -> Answer:
        return json_answer(describe(self._pipeline_service))

    def _metrics(self) -> Answer:
        text = metrics_text(self._pipeline_service)
        return 200, text, [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]


def describe(service: PipelineService) -> Mapping[str, Any]:
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
            "budget_ms": sla.response_time_ms * least / total_ms if total_ms else None,
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
            **{outcome: getattr(core, outcome) for outcome in OUTCOMES},
        },
        "last_minute": service.last_minute.growth(),
        "expected_ms": core.expected_ms(),
        "measured_ms": measured_ms(core),
        "bottleneck": core.bottleneck().name,
        "stages": stages,
        "scaling": _scaling(service),
    }


def _scaling(service: PipelineService) -> Mapping[str, Any] | None:
    if service.autoscaler is None:
        return None
    from deployments.pipelines.planning.scaling import MARGIN  # it loads numba

    scaler = service.autoscaler.scaler
    return {
        "margin": MARGIN,
        "workers_needed": scaler.workers,
        "items_per_request": scaler.items_per_request,
        "replicas_needed": service.autoscaler.replica_needs(),
    }
