"""The config file, in Ray Serve's schema, which `serve deploy` accepts unchanged.

An application's `args` say what a replica is (`deployments.config.replica_args`), and its
deployment's `user_config` what may change while it runs (`deployments.config.user_config`).
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.config.replica_args import ReplicaArgs, parse_args
from deployments.config.serve_schema import (
    ActorOptions,
    ApplicationEntry,
    AutoscalingConfig,
    DeploymentEntry,
    HttpOptions,
    ServeDocument,
)
from deployments.config.user_config import SLAConfig, UserConfig, parse_user_config
from deployments.config.validation import Place, StrictModel, fault, repeated, validate
from deployments.config.yaml_file import YamlFile

#: The deployment's name in the config file.
DEPLOYMENT = "Replica"
#: The application builder that marks Sojourn's application in the config file.
IMPORT_PATH = "deployments.application:build"
#: That of a pipeline.
PIPELINE_IMPORT_PATH = "deployments.pipelines.serving.application:build"
_BUILT = {IMPORT_PATH: "a model", PIPELINE_IMPORT_PATH: "a pipeline"}
#: The autoscaler, as an `autoscaling_config` must name it.
AUTOSCALING_POLICY = "autoscaler.ray_adapter:SojournAutoscalingPolicy"
#: Replicas must report at least this often, in s, for the autoscaler to see a step in the load.
MAX_METRICS_INTERVAL_S = 2.0


@dataclass(frozen=True)
class Application:
    """One application of a config file, and the one deployment that Sojourn gives it."""

    entry: ApplicationEntry
    deployment: DeploymentEntry
    http: HttpOptions
    place: Place

    @property
    def deployment_place(self) -> Place:
        return (*self.place, "deployments", 0)

    @property
    def actor(self) -> ActorOptions:
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
    #: Resources that a replica takes of its node.
    actor: ActorOptions
    #: The least and the greatest number of replicas.
    replicas: tuple[int, int]
    #: URL from which Ray takes the working directory of the replicas.
    working_dir: str | None
    document: dict[str, Any]

    @property
    def num_cpus(self) -> float:
        return self.actor.num_cpus


def load_service_configs(path: str | Path) -> list[ServiceConfig]:
    """Read and check a config file; return its models, one for each application.

    `InvalidInputError` has the first error, in one line: file, line, key, and what is allowed.
    """
    file = YamlFile(path)
    with file.located():
        found = find_applications(file.content, IMPORT_PATH, DEPLOYMENT, AUTOSCALING_POLICY)
        services = [_service_config(file.content, application) for application in found]
        for key in ("application", "route_prefix"):
            twice = repeated([getattr(service, key) for service in services])
            if twice is not None:
                raise fault(("applications",), f"two have the {key} {twice or '/'!r}")
    return services


def find_applications(
    content: object, import_path: str, deployment: str, policy_function: str | None
) -> list[Application]:
    """Check a config file's structure and return the applications that `import_path` builds.

    Each must have the one `deployment`. An ``autoscaling_config`` must name `policy_function`;
    None: it may name none. `ConfigError` has the first error.
    """
    if not isinstance(content, Mapping) or not isinstance(content.get("applications"), list):
        raise fault(("applications",), "is required; the file must follow Ray Serve's schema")
    document = validate(ServeDocument, content)
    http = document.http_options or HttpOptions()
    found = []
    for index, built in enumerate(document.applications):
        if built.import_path == import_path:
            place: Place = ("applications", index)
            entry = validate(ApplicationEntry, content["applications"][index], *place)
            if entry.autoscaling_policy is not None and policy_function is not None:
                raise fault(
                    (*place, "autoscaling_policy"),
                    "has no effect; name the policy in the deployment's autoscaling_config",
                )
            only = _only_deployment(entry, place, deployment, policy_function)
            found.append(Application(entry, only, http, place))
    if not found:
        given = [built.import_path for built in document.applications if built.import_path]
        if given and given[0] in _BUILT:
            wanted = _BUILT[import_path]
            raise fault(("applications", 0), f"is {_BUILT[given[0]]}, must be {wanted} here")
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
    arguments = None if scaling.policy is None else scaling.policy.policy_kwargs
    if arguments is not None and arguments.replica_budget is not None:
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
    for delay in ("upscale_delay_s", "downscale_delay_s"):
        if value := getattr(scaling, delay):
            raise fault(
                (*place, delay),
                f"must be 0, not {value:g} (Ray's default), with which Ray holds back what "
                "Sojourn's autoscaler decides",
            )
    if not 0 < scaling.metrics_interval_s <= MAX_METRICS_INTERVAL_S:
        raise fault(
            (*place, "metrics_interval_s"),
            f"must be above 0 and at most {MAX_METRICS_INTERVAL_S:g} (1 is right), not "
            f"{scaling.metrics_interval_s:g}, for the autoscaler to see a step in the load",
        )
