"""The HTTP interface of a pipeline: the interface of a model, and details of the stages."""

import math
from collections.abc import Mapping
from typing import Any

from deployments.console.planner import Call
from deployments.http.answers import Answer, json_answer
from deployments.http.app import InferenceApp
from deployments.pipelines.serving.metrics import OUTCOMES, measured_ms, metrics_text
from deployments.pipelines.serving.service import PipelineService

_PATH, _METRICS = "/sojourn/pipeline", "/metrics"


class PipelineApp(InferenceApp):
    def __init__(self, service: PipelineService, server_version: str) -> None:
        self._pipeline_service = service
        more = {_PATH: self._describe, _METRICS: self._metrics}
        super().__init__(service, server_version, self._decisions, more=more)

    def reports(self) -> list[Mapping[str, Any]]:
        service = self._pipeline_service
        return [{**service.explain(), "pipeline": describe(service)}]

    def planning(self, content: Any) -> dict[str, Call]:
        return self._pipeline_service.planning(content)

    async def _decisions(self) -> Mapping[str, Any]:
        autoscaler = self._pipeline_service.autoscaler
        stages = {} if autoscaler is None else autoscaler.scaler.stages
        return {
            "newest": None,
            "decisions": [],
            "stages": {
                name: {"newest": stage.log.newest, "decisions": stage.log.recorded}
                for name, stage in stages.items()
            },
        }

    def _describe(self) -> Answer:
        return json_answer(describe(self._pipeline_service))

    def _metrics(self) -> Answer:
        text = metrics_text(self._pipeline_service)
        return 200, text, [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]


def describe(service: PipelineService) -> Mapping[str, Any]:
    core, sla = service.pipeline.core, service.user_config.sla
    least_ms = [stage.latency_ms(1) for stage in core.stages]
    budgets_ms = _budgets_ms(service)
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
            "budget_ms": budgets_ms.get(stage.name),
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


def _budgets_ms(service: PipelineService) -> Mapping[str, float]:
    if service.autoscaler is not None and service.autoscaler.table is not None:
        return {name: stage.budget_ms for name, stage in service.autoscaler.scaler.stages.items()}
    least_ms = {stage.name: stage.latency_ms(1) for stage in service.pipeline.core.stages}
    scale = service.user_config.sla.response_time_ms / (sum(least_ms.values()) or math.inf)
    return {name: scale * ms for name, ms in least_ms.items()}


def _scaling(service: PipelineService) -> Mapping[str, Any] | None:
    autoscaler = service.autoscaler
    if autoscaler is None or autoscaler.table is None:
        return None
    return {
        "workers_needed": {name: stage.workers for name, stage in autoscaler.scaler.stages.items()},
        "items_per_request": service.pipeline.core.backlog.items_per_request(),
        "replicas_needed": autoscaler.replica_needs(),
    }
