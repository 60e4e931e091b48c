"""The config file, in Ray Serve's schema, which `serve deploy` accepts unchanged.

An application's `args` say what a replica is (`deployments.config.replica_args`), and its
deployment's `user_config` what may change while it runs (`deployments.config.user_config`). Ray
Serve ignores keys that it does not know, so that a misspelled one silently becomes a default; here
it is an error, as is one that has no effect.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from deployments.config.replica_args import ReplicaArgs, parse_args
from deployments.config.user_config import SLAConfig, UserConfig, parse_user_config
from deployments.config.validation import Place, StrictModel, fault, validate, without_effect
from deployments.config.yaml_file import YamlFile
from policy.errors import InvalidInputError

#: The deployment's name in the config file.
DEPLOYMENT = "Replica"
#: The application builder that marks Sojourn's application in the config file.
IMPORT_PATH = "deployments.application:build"
#: The autoscaler, as an `autoscaling_config` must name it.
AUTOSCALING_POLICY = "autoscaler.ray_adapter:SojournAutoscalingPolicy"
#: Replicas must report at least this often, in s, for the autoscaler to see a step in the load.
MAX_METRICS_INTERVAL_S = 2.0

_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
_PREFIX = re.compile(r"/|(/[^/\s{}?#]+)+")


class _Entry(BaseModel):
    """A mapping of Ray Serve's schema; a test compares its keys with Ray's. Nothing is converted.

    Keys of type Any are Ray's alone, and `deployments.config.ray_schema` checks them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class HttpOptions(_Entry):
    """`http_options`: where the service listens."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)
    keep_alive_timeout_s: Any = None
    request_timeout_s: Any = None
    root_path: Any = None
    ssl_ca_certs: Any = None
    ssl_certfile: Any = None
    ssl_keyfile: Any = None
    ssl_keyfile_password: Any = None

    @field_validator("host")
    @classmethod
    def _is_a_host(cls, value: str) -> str:
        if not _HOST.fullmatch(value):
            raise ValueError("must be an address or a host's name")
        return value

    @field_validator("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_keyfile_password")
    @classmethod
    def _is_plain_http(cls, value: object) -> None:
        if value is not None:
            raise without_effect("Sojourn serves plain HTTP: end TLS in front of it")


class AutoscalingPolicy(_Entry):
    """The `policy` of an `autoscaling_config`, or the `autoscaling_policy` of an application."""

    policy_function: Any = None
    policy_kwargs: dict[str, Any] | None = None


class AutoscalingConfig(_Entry):
    """`autoscaling_config` of a deployment."""

    min_replicas: int = Field(default=1, ge=0)
    max_replicas: int = Field(default=1, ge=1)
    initial_replicas: int | None = Field(default=None, ge=0)
    metrics_interval_s: float = 10.0
    policy: AutoscalingPolicy | None = None
    target_ongoing_requests: Any = None
    aggregation_function: Any = None
    downscale_delay_s: Any = None
    downscale_smoothing_factor: Any = None
    downscale_to_zero_delay_s: Any = None
    downscaling_factor: Any = None
    look_back_period_s: Any = None
    smoothing_factor: Any = None
    upscale_delay_s: Any = None
    upscale_smoothing_factor: Any = None
    upscaling_factor: Any = None


class ActorOptions(_Entry):
    """`ray_actor_options`: what a replica takes of its node."""

    num_cpus: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    num_gpus: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    #: In bytes.
    memory: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    accelerator_type: Any = None
    fallback_strategy: Any = None
    label_selector: Any = None
    resources: Any = None
    runtime_env: Any = None


class DeploymentEntry(_Entry):
    """An entry of `deployments`."""

    name: str | None = None
    num_replicas: int | None = Field(default=None, ge=1)
    autoscaling_config: AutoscalingConfig | None = None
    ray_actor_options: ActorOptions | None = None
    user_config: dict[str, Any] | None = None
    backpressure_config: Any = None
    deployment_actors: Any = None
    gang_scheduling_config: Any = None
    graceful_shutdown_timeout_s: Any = None
    graceful_shutdown_wait_loop_s: Any = None
    health_check_period_s: Any = None
    health_check_timeout_s: Any = None
    logging_config: Any = None
    max_ongoing_requests: Any = None
    max_queued_requests: Any = None
    max_replicas_per_node: Any = None
    max_surge_percent: Any = None
    placement_group_bundle_label_selector: Any = None
    placement_group_bundles: Any = None
    placement_group_strategy: Any = None
    request_router_config: Any = None
    rolling_update_percentage: Any = None


class RuntimeEnvironment(BaseModel):
    """`runtime_env` of an application; Ray checks its other keys."""

    model_config = ConfigDict(strict=True, frozen=True)

    working_dir: str | None = None


class ApplicationEntry(_Entry):
    """An entry of `applications`."""

    name: str = Field(default="default", min_length=1)
    route_prefix: str | None = "/"
    import_path: str | None = None
    runtime_env: RuntimeEnvironment | None = None
    args: dict[str, Any] | None = None
    deployments: list[DeploymentEntry] | None = None
    autoscaling_policy: AutoscalingPolicy | None = None
    external_scaler_enabled: Any = None
    host: Any = None
    logging_config: Any = None
    port: Any = None

    @field_validator("route_prefix")
    @classmethod
    def _is_a_prefix(cls, value: str | None) -> str | None:
        if value is not None and not _PREFIX.fullmatch(value):
            raise ValueError("must be / or begin with / and end without, as /digits does")
        return value


class ServeDocument(_Entry):
    """The whole file."""

    applications: list[ApplicationEntry]
    http_options: HttpOptions | None = None
    proxy_location: Any = None
    controller_options: Any = None
    grpc_options: Any = None
    logging_config: Any = None
    target_capacity: Any = None
    tracing_config: Any = None

    @field_validator("grpc_options")
    @classmethod
    def _is_http(cls, value: object) -> None:
        if value is not None:
            raise without_effect("Sojourn serves HTTP alone: remove it")


@dataclass(frozen=True)
class Application:
    """One application of a config file, and the one deployment that Sojourn gives it.

    Attributes
    ----------
    entry : ApplicationEntry
    deployment : DeploymentEntry
    http : HttpOptions
    place : Place
        Where the application's entry is.
    """

    entry: ApplicationEntry
    deployment: DeploymentEntry
    http: HttpOptions
    place: Place

    @property
    def deployment_place(self) -> Place:
        """Where the deployment's entry is."""
        return (*self.place, "deployments", 0)

    @property
    def actor(self) -> ActorOptions:
        """What a replica takes of its node."""
        return self.deployment.ray_actor_options or ActorOptions()

    @property
    def route_prefix(self) -> str:
        """Where the application answers, without a slash at the end."""
        return (self.entry.route_prefix or "/").rstrip("/")

    @property
    def replicas(self) -> tuple[int, int]:
        """The least and the greatest number of replicas."""
        scaling = self.deployment.autoscaling_config
        if scaling is None:
            number = self.deployment.num_replicas or 1
            return number, number
        return scaling.min_replicas, scaling.max_replicas


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
    #: URL from which Ray takes the working directory of the replicas.
    working_dir: str | None
    document: dict[str, Any]

    @property
    def num_cpus(self) -> float:
        """CPUs of a replica."""
        return self.actor.num_cpus


def load_service_configs(path: str | Path) -> list[ServiceConfig]:
    """Read and check a config file; return its models, one for each application.

    Raises
    ------
    InvalidInputError
        The first error, in one line: the file, the line, the key, and what is allowed.
    """
    file = YamlFile(path)
    with file.located():
        found = find_applications(file.content, IMPORT_PATH, DEPLOYMENT, AUTOSCALING_POLICY)
        services = [_service_config(file.content, application) for application in found]
        for key in ("application", "route_prefix"):
            values = [getattr(service, key) for service in services]
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise fault(("applications",), f"two have the {key} {twice or '/'!r}")
    return services


def load_service_config(path: str | Path) -> ServiceConfig:
    """Read and check a config file of one model.

    Raises
    ------
    InvalidInputError
        The first error, in one line: the file, the line, the key, and what is allowed.
    """
    services = load_service_configs(path)
    if len(services) > 1:
        raise InvalidInputError(f"{path}: has {len(services)} models, must have one here")
    return services[0]


def find_applications(
    content: object, import_path: str, deployment: str, policy_function: str | None
) -> list[Application]:
    """Check a config file's structure and return the applications that `import_path` builds.

    Parameters
    ----------
    content : object
        The content of the file.
    import_path : str
        The application builder.
    deployment : str
        Name of the one deployment that it builds.
    policy_function : str or None
        The autoscaling policy that an ``autoscaling_config`` must name. None: it may have none.

    Raises
    ------
    ConfigError
        The first error, in one line: where it is, what is wrong, what is allowed.
    """
    if not isinstance(content, Mapping) or not isinstance(content.get("applications"), list):
        raise fault(("applications",), "is required; the file must follow Ray Serve's schema")
    document = validate(ServeDocument, content)
    http = document.http_options or HttpOptions()
    found = []
    for index, entry in enumerate(document.applications):
        if entry.import_path == import_path:
            place: Place = ("applications", index)
            only = _only_deployment(entry, place, deployment, policy_function)
            found.append(Application(entry, only, http, place))
    if not found:
        given = [entry.import_path for entry in document.applications if entry.import_path]
        near = difflib.get_close_matches(import_path, given, n=1)
        hint = f"; is {near[0]} misspelled?" if near else ""
        raise fault(("applications",), f"none has import_path {import_path}{hint}")
    return found


def _service_config(document: dict[str, Any], application: Application) -> ServiceConfig:
    user_config = parse_user_config(
        application.deployment.user_config, *application.deployment_place
    )
    _check_standbys(application, user_config.autoscaler.standbys)
    environment = application.entry.runtime_env
    return ServiceConfig(
        application=application.entry.name,
        route_prefix=application.route_prefix,
        http_host=application.http.host,
        http_port=application.http.port,
        args=parse_args(application.entry.args, *application.place),
        user_config=user_config,
        actor=application.actor,
        replicas=application.replicas,
        working_dir=None if environment is None else environment.working_dir,
        document=document,
    )


def _check_standbys(application: Application, standbys: int | str) -> None:
    """Raise an error if standbys are asked for where there can be none."""
    if standbys == 0:
        return
    place = (*application.deployment_place, "user_config", "autoscaler", "standbys")
    scaling = application.deployment.autoscaling_config
    if scaling is None:
        raise fault(place, "needs an autoscaling_config; num_replicas is fixed")
    if scaling.policy and "replica_budget" in (scaling.policy.policy_kwargs or {}):
        raise fault(place, f"must be 0 with a replica_budget, not {standbys}")
    least = standbys if isinstance(standbys, int) else 1
    if least >= scaling.max_replicas:
        raise fault(
            place,
            "must leave room for a replica that serves within max_replicas, "
            f"{scaling.max_replicas}; {standbys} does not",
        )


def _only_deployment(
    application: ApplicationEntry, place: Place, name: str, policy_function: str | None
) -> DeploymentEntry:
    place = (*place, "deployments")
    entries = application.deployments or []
    if len(entries) != 1 or entries[0].name != name:
        names = ", ".join(repr(entry.name) for entry in entries) or "none"
        raise fault(place, f"must have one entry, with the name {name}, not {names}")
    (entry,) = entries
    place = (*place, 0)
    if entry.autoscaling_config is not None:
        _check_scaling(entry.autoscaling_config, (*place, "autoscaling_config"), policy_function)
    sla = (entry.user_config or {}).get("sla")
    # A misspelled key is told of where the SLA is parsed.
    if not sla or (isinstance(sla, dict) and set(sla) < set(SLAConfig.model_fields)):
        raise fault(
            (*place, "user_config", "sla"),
            "is required, with response_time_ms and percentile, for example 100ms@99",
        )
    return entry


def _check_scaling(scaling: AutoscalingConfig, place: Place, policy_function: str | None) -> None:
    least, greatest = scaling.min_replicas, scaling.max_replicas
    if least > greatest:
        raise fault(
            (*place, "min_replicas"), f"must be at most max_replicas, {greatest}, not {least}"
        )
    initial = scaling.initial_replicas
    if initial is not None and not least <= initial <= greatest:
        raise fault(
            (*place, "initial_replicas"), f"must be from {least} to {greatest}, not {initial}"
        )
    if policy_function is None:
        return
    given = scaling.policy and scaling.policy.policy_function
    if given != policy_function:
        raise fault(
            (*place, "policy", "policy_function"),
            f"must be {policy_function}, not {given!r}; "
            "for a fixed number of replicas, write num_replicas instead of autoscaling_config",
        )
    if scaling.target_ongoing_requests is not None:
        raise fault(
            (*place, "target_ongoing_requests"),
            "has no effect beside Sojourn's autoscaler, which keeps the SLA: remove it",
        )
    if not 0 < scaling.metrics_interval_s <= MAX_METRICS_INTERVAL_S:
        raise fault(
            (*place, "metrics_interval_s"),
            f"must be above 0 and at most {MAX_METRICS_INTERVAL_S:g} (1 is right), not "
            f"{scaling.metrics_interval_s:g}, for the autoscaler to see a step in the load",
        )
