"""The config file in Ray Serve's schema, which `serve deploy` accepts unchanged.

It says what a replica is (`args`, `deployments.config.replica_args`) and what may change while it
runs
(`user_config`, `deployments.config.user_config`). Whatever is tuned live (SLA, policy, autoscaler,
limits) is in `user_config`, once.
"""

from pathlib import Path
from typing import Any

from pydantic import field_validator

from deployments.config.replica_args import ModelConfig, ReplicaArgs, StoreConfig, parse_args
from deployments.config.serve_document import (
    Application,
    check_standbys,
    find_applications,
)
from deployments.config.serve_values import ActorOptions
from deployments.config.user_config import (
    AutoscalerConfig,
    HostedModelConfig,
    LimitsConfig,
    PolicyConfig,
    SLAConfig,
    UserConfig,
    parse_user_config,
)
from deployments.config.validation import StrictModel
from deployments.config.yaml_file import read_yaml
from policy.errors import InvalidInputError

__all__ = [
    "AUTOSCALING_POLICY",
    "DEPLOYMENT",
    "IMPORT_PATH",
    "AutoscalerConfig",
    "HostedModelConfig",
    "LimitsConfig",
    "ModelConfig",
    "PolicyConfig",
    "ReplicaArgs",
    "SLAConfig",
    "ServiceConfig",
    "StoreConfig",
    "UserConfig",
    "load_service_config",
    "load_service_configs",
    "parse_args",
    "parse_user_config",
]

#: The deployment's name in the config file.
DEPLOYMENT = "Replica"
#: The application builder that marks Sojourn's application in the config file.
IMPORT_PATH = "deployments.application:build"
#: The autoscaler, as an `autoscaling_config` must name it.
AUTOSCALING_POLICY = "autoscaler.ray_adapter:SojournAutoscalingPolicy"


class ServiceConfig(StrictModel):
    """The parts of a config file that concern one model, and the whole document."""

    application: str
    route_prefix: str
    http_host: str
    http_port: int
    args: ReplicaArgs
    user_config: UserConfig
    #: What a replica takes of its node.
    actor: ActorOptions
    #: The least and the greatest number of replicas.
    replicas: tuple[int, int]
    document: dict[str, Any]

    @property
    def num_cpus(self) -> float:
        """CPUs of a replica."""
        return self.actor.num_cpus

    @field_validator("route_prefix")
    @classmethod
    def _no_slash_at_end(cls, value: str) -> str:
        return value.rstrip("/")


def load_service_configs(path: str | Path) -> list[ServiceConfig]:
    """Read and check a config file; return its models, one for each application.

    Raises
    ------
    InvalidInputError
        The first error, in one line: where it is, and what is allowed.
    """
    document = read_yaml(path)
    try:
        found = find_applications(document, IMPORT_PATH, DEPLOYMENT, AUTOSCALING_POLICY)
        services = [_service_config(document, application) for application in found]
        for key in ("application", "route_prefix"):
            values = [getattr(service, key) for service in services]
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise InvalidInputError(f"applications: two have the {key} {twice or '/'!r}")
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None
    return services


def load_service_config(path: str | Path) -> ServiceConfig:
    """Read and check a config file of one model.

    Raises
    ------
    InvalidInputError
        The first error, in one line: where it is, and what is allowed.
    """
    services = load_service_configs(path)
    if len(services) > 1:
        raise InvalidInputError(f"{path}: has {len(services)} models, must have one here")
    return services[0]


def _service_config(document: dict[str, Any], application: Application) -> ServiceConfig:
    user_config = parse_user_config(application.user_config)
    check_standbys(application, user_config.autoscaler.settings().standbys)
    return ServiceConfig(
        application=application.values.name,
        route_prefix=application.values.route_prefix or "/",
        http_host=application.http.host,
        http_port=application.http.port,
        args=parse_args(application.content.get("args")),
        user_config=user_config,
        actor=application.actor,
        replicas=application.replicas,
        document=document,
    )
