"""What a local run serves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployments.config.document import ServiceConfig
from deployments.haproxy.request_environment import request_environment


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


def run_of(services: Sequence[ServiceConfig]) -> LocalRun:
    """Return the local run of the models in a config file."""
    first = services[0]
    least = [max(1, service.replicas[0]) for service in services]
    return LocalRun(
        first.http_host,
        first.http_port,
        tuple(
            ServedApplication(service.application, service.args.model.name, service.route_prefix)
            for service in services
        ),
        first.document,
        request_environment(services),
        sum(n * service.actor.num_cpus for n, service in zip(least, services, strict=True)),
        sum(n * service.actor.num_gpus for n, service in zip(least, services, strict=True)),
    )
