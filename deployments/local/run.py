"""The applications and settings of a local run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployments.config.document import ServiceConfig
from deployments.config.serve_schema import ActorOptions
from deployments.config.user_config import AccessConfig
from deployments.haproxy.command import HELD_MS
from deployments.haproxy.request_environment import RequestTraits, request_environment
from deployments.haproxy.routing import held_environment
from deployments.pipelines.serving.config import PipelineFile


@dataclass(frozen=True)
class ServedApplication:
    """One application of a config file; its route prefix has no slash at the end."""

    application: str
    model: str
    route_prefix: str
    sla: str
    access: AccessConfig
    is_pipeline: bool = False
    further_models: tuple[str, ...] = ()


@dataclass(frozen=True)
class LocalRun:
    """A config file as a local run takes it, with HAProxy's settings that follow from it.

    The `notes` are warnings: it may be meant so.
    """

    http_host: str
    http_port: int
    applications: tuple[ServedApplication, ...]
    document: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    notes: tuple[str, ...] = ()


def run_of(
    services: Sequence[ServiceConfig],
    traits: Sequence[RequestTraits],
    pipeline: PipelineFile | None = None,
    notes: Sequence[str] = (),
) -> LocalRun:
    """Return the local run of models, given the traits of their requests, and of a pipeline."""
    applications = [
        ServedApplication(
            service.application,
            service.args.model.name,
            service.route_prefix,
            service.user_config.sla.objective.in_words(),
            service.user_config.access,
            further_models=tuple(model.name for model in service.args.models),
        )
        for service in services
    ]
    environment = request_environment(services, traits) if services else {HELD_MS: ""}
    if pipeline is not None:
        config = pipeline.user_config
        applications.append(
            ServedApplication(
                pipeline.application,
                pipeline.pipeline.name,
                pipeline.route_prefix,
                config.sla.objective.in_words(),
                config.access,
                is_pipeline=True,
            )
        )
        held = held_environment({pipeline.application: config.sla.response_time_ms})
        environment[HELD_MS] = ",".join(filter(None, (environment[HELD_MS], held[HELD_MS])))
    first = services[0] if services else pipeline
    assert first is not None
    return LocalRun(
        first.http_host,
        first.http_port,
        tuple(applications),
        first.document,
        environment,
        *least_room(services, pipeline),
        tuple(notes),
    )


def least_room(
    services: Sequence[ServiceConfig], pipeline: PipelineFile | None
) -> tuple[float, float]:
    """Return the CPUs and the GPUs that the least replicas take, of each kind at least one."""
    replicas: Iterable[tuple[int, ActorOptions]] = (
        *((service.replicas[0], service.actor) for service in services),
        *(() if pipeline is None else pipeline.least_replicas),
    )
    least = [(max(1, count), actor) for count, actor in replicas]
    num_cpus = sum(count * actor.num_cpus for count, actor in least)
    return num_cpus, sum(count * actor.num_gpus for count, actor in least)
