"""The applications and settings of a local run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployments.config.document import ServiceConfig
from deployments.config.serve_schema import ActorOptions
from deployments.haproxy.request_environment import RequestTraits, request_environment


@dataclass(frozen=True)
class ServedApplication:
    """One application of a config file; its route prefix has no slash at the end."""

    application: str
    model: str
    route_prefix: str


@dataclass(frozen=True)
class LocalRun:
    """A config file as a local run takes it, with HAProxy's settings that follow from it."""

    http_host: str
    http_port: int
    applications: tuple[ServedApplication, ...]
    document: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    num_cpus: float = 0.0
    num_gpus: float = 0.0


def run_of(services: Sequence[ServiceConfig], traits: Sequence[RequestTraits]) -> LocalRun:
    """Return the local run of the models in a config file, given the traits of their requests."""
    first = services[0]
    return LocalRun(
        first.http_host,
        first.http_port,
        tuple(
            ServedApplication(service.application, service.args.model.name, service.route_prefix)
            for service in services
        ),
        first.document,
        request_environment(services, traits),
        *least_room((service.replicas[0], service.actor) for service in services),
    )


def least_room(replicas: Iterable[tuple[int, ActorOptions]]) -> tuple[float, float]:
    """Return the CPUs and the GPUs that the least replicas take, of each kind at least one."""
    least = [(max(1, count), actor) for count, actor in replicas]
    num_cpus = sum(count * actor.num_cpus for count, actor in least)
    return num_cpus, sum(count * actor.num_gpus for count, actor in least)
