"""Checks of a config file as a whole: its keys, and numbers that Ray Serve would not question.

Ray Serve ignores keys that it does not know, so that a misspelled key silently becomes a default.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from deployments.config.serve_values import (
    ActorOptions,
    ApplicationValues,
    DeploymentValues,
    HttpOptions,
)
from deployments.config.validation import unknown_key, validate
from policy.errors import InvalidInputError

_NAMES = {
    "sla": "percentile response_time_ms",
    "": """
        applications controller_options grpc_options http_options logging_config proxy_location
        target_capacity tracing_config
    """,
    "http_options": """
        host keep_alive_timeout_s port request_timeout_s root_path ssl_ca_certs ssl_certfile
        ssl_keyfile ssl_keyfile_password
    """,
    "applications": """
        args autoscaling_policy deployments external_scaler_enabled host import_path
        logging_config name port route_prefix runtime_env
    """,
    "deployments": """
        autoscaling_config backpressure_config deployment_actors gang_scheduling_config
        graceful_shutdown_timeout_s graceful_shutdown_wait_loop_s health_check_period_s
        health_check_timeout_s logging_config max_ongoing_requests max_queued_requests
        max_replicas_per_node max_surge_percent name num_replicas
        placement_group_bundle_label_selector placement_group_bundles placement_group_strategy
        ray_actor_options request_router_config rolling_update_percentage user_config
    """,
    "autoscaling_config": """
        aggregation_function downscale_delay_s downscale_smoothing_factor
        downscale_to_zero_delay_s downscaling_factor initial_replicas look_back_period_s
        max_replicas metrics_interval_s min_replicas policy smoothing_factor
        target_ongoing_requests upscale_delay_s upscale_smoothing_factor upscaling_factor
    """,
    "policy": "policy_function policy_kwargs",
    "ray_actor_options": """
        accelerator_type fallback_strategy label_selector memory num_cpus num_gpus resources
        runtime_env
    """,
}
#: The keys of Ray Serve's schema, by the place in the file.
KEYS = {place: frozenset(names.split()) for place, names in _NAMES.items()}
#: Replicas must report at least this often, in s, for the autoscaler to see a step in the load.
MAX_METRICS_INTERVAL_S = 2.0


@dataclass(frozen=True)
class Application:
    """One application of a config file, and the one deployment that Sojourn gives it.

    Attributes
    ----------
    values : ApplicationValues
        What Sojourn reads of the application's entry.
    actor : ActorOptions
        What a replica takes of its node.
    http : HttpOptions
        Where the file's service listens.
    content : mapping
        The application's entry.
    deployment : mapping
        The deployment's entry.
    """

    values: ApplicationValues
    actor: ActorOptions
    http: HttpOptions
    content: Mapping[str, Any]
    deployment: Mapping[str, Any]

    @property
    def user_config(self) -> Mapping[str, Any]:
        """The deployment's ``user_config``."""
        content: Mapping[str, Any] = self.deployment["user_config"]
        return content

    @property
    def replicas(self) -> tuple[int, int]:
        """The least and the greatest number of replicas."""
        scaling = self.deployment.get("autoscaling_config")
        if scaling is None:
            number = self.deployment.get("num_replicas") or 1
            return number, number
        return scaling.get("min_replicas", 1), scaling.get("max_replicas", 1)


def find_applications(
    document: Any, import_path: str, deployment: str, policy_function: str | None
) -> list[Application]:
    """Check a config file's structure and return the applications that `import_path` builds.

    Parameters
    ----------
    document : object
        The content of the file.
    import_path : str
        The application builder.
    deployment : str
        Name of the one deployment that it builds.
    policy_function : str or None
        The autoscaling policy that an ``autoscaling_config`` must name. None: it may have none.

    Raises
    ------
    InvalidInputError
        The first error, in one line: where it is, what is wrong, what is allowed.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("applications"), list):
        raise InvalidInputError("applications: missing; the file must follow Ray Serve's schema")
    _check_keys(document, "", "")
    _check_keys(document.get("http_options"), "http_options", "http_options")
    http = validate(HttpOptions, document.get("http_options") or {}, "http_options")
    found = []
    for index, content in enumerate(document["applications"]):
        where = f"applications.{index}"
        _check_mapping(content, where)
        _check_keys(content, where, "applications")
        values = validate(ApplicationValues, content, where)
        for number, entry in enumerate(_list(content.get("deployments"), f"{where}.deployments")):
            _check_deployment(entry, f"{where}.deployments.{number}")
        if values.import_path == import_path:
            entry = _only_deployment(content, where, deployment, policy_function)
            actor = validate(ActorOptions, entry.get("ray_actor_options") or {})
            found.append(Application(values, actor, http, content, entry))
    if not found:
        raise InvalidInputError(
            f"applications: none has import_path {import_path}"
            + _hint(import_path, (c.get("import_path") for c in document["applications"]))
        )
    return found


def check_standbys(application: Application, standbys: int | str) -> None:
    """Raise an error if standbys are asked for where there can be none.

    Parameters
    ----------
    application : Application
    standbys : int or str
        The setting; see `autoscaler.settings.AutoscalerSettings`.

    Raises
    ------
    InvalidInputError
    """
    if standbys == 0:
        return
    where = "user_config.autoscaler.standbys"
    scaling = application.deployment.get("autoscaling_config")
    if not scaling:
        raise InvalidInputError(f"{where}: needs an autoscaling_config; num_replicas is fixed")
    if "replica_budget" in ((scaling.get("policy") or {}).get("policy_kwargs") or {}):
        raise InvalidInputError(f"{where}: must be 0 with a replica_budget, not {standbys}")
    most = application.replicas[1]
    least = standbys if isinstance(standbys, int) else 1
    if least >= most:
        raise InvalidInputError(
            f"{where}: must leave room for a replica that serves within max_replicas, {most}; "
            f"{standbys} does not"
        )


def _check_deployment(entry: Any, where: str) -> None:
    _check_mapping(entry, where)
    _check_keys(entry, where, "deployments")
    _check_keys(entry.get("ray_actor_options"), f"{where}.ray_actor_options", "ray_actor_options")
    scaling = entry.get("autoscaling_config")
    _check_keys(scaling, f"{where}.autoscaling_config", "autoscaling_config")
    if scaling:
        _check_keys(scaling.get("policy"), f"{where}.autoscaling_config.policy", "policy")
    validate(DeploymentValues, entry, where)


def _only_deployment(
    content: Mapping[str, Any], where: str, deployment: str, policy_function: str | None
) -> Mapping[str, Any]:
    entries = content.get("deployments") or []
    names = [entry.get("name") for entry in entries]
    for index, name in enumerate(names):
        if name != deployment:
            raise InvalidInputError(
                f"{where}.deployments.{index}.name: must be {deployment}, not {name!r}"
            )
    if len(names) != 1:
        raise InvalidInputError(
            f"{where}.deployments: must have one entry, with the name {deployment}, "
            f"not {len(names)}"
        )
    entry: Mapping[str, Any] = entries[0]
    where = f"{where}.deployments.0"
    if "autoscaling_config" in entry:
        _check_scaling(
            entry["autoscaling_config"] or {}, f"{where}.autoscaling_config", policy_function
        )
    elif entry.get("num_replicas") is not None:
        _check_whole(entry["num_replicas"], f"{where}.num_replicas", 1)
    sla = (entry.get("user_config") or {}).get("sla")
    _check_keys(sla, f"{where}.user_config.sla", "sla")
    if not isinstance(sla, Mapping) or not {"response_time_ms", "percentile"} <= set(sla):
        raise InvalidInputError(
            f"{where}.user_config.sla: must have response_time_ms and percentile, for example "
            "{response_time_ms: 100, percentile: 99}"
        )
    return entry


def _check_scaling(scaling: Mapping[str, Any], where: str, policy_function: str | None) -> None:
    least = scaling.get("min_replicas", 1)
    greatest = scaling.get("max_replicas", 1)
    _check_whole(least, f"{where}.min_replicas", 0)
    _check_whole(greatest, f"{where}.max_replicas", 1)
    if least > greatest:
        raise InvalidInputError(
            f"{where}: min_replicas must be at most max_replicas, not {least} with {greatest}"
        )
    initial = scaling.get("initial_replicas")
    if initial is not None:
        _check_whole(initial, f"{where}.initial_replicas", 0)
        if not least <= initial <= greatest:
            raise InvalidInputError(
                f"{where}.initial_replicas: must be from {least} to {greatest}, not {initial}"
            )
    if policy_function is None:
        return
    given = (scaling.get("policy") or {}).get("policy_function")
    if given != policy_function:
        raise InvalidInputError(
            f"{where}.policy.policy_function: must be {policy_function}, not {given!r}; "
            "for a fixed number of replicas, write num_replicas instead of autoscaling_config"
        )
    interval_s = scaling.get("metrics_interval_s")
    if not _is_number(interval_s) or not 0 < interval_s <= MAX_METRICS_INTERVAL_S:
        raise InvalidInputError(
            f"{where}.metrics_interval_s: must be above 0 and at most {MAX_METRICS_INTERVAL_S:g} "
            f"(1 is right), not {interval_s!r}, for the autoscaler to see a step in the load"
        )


def _check_keys(content: Any, where: str, place: str) -> None:
    if content is None and where:
        return
    _check_mapping(content, where)
    for name in content:
        if name not in KEYS[place]:
            path = f"{where}.{name}" if where else str(name)
            raise InvalidInputError(f"{path}: {unknown_key(str(name), KEYS[place])}")


def _check_mapping(content: Any, where: str) -> None:
    if not isinstance(content, Mapping):
        raise InvalidInputError(f"{where}: must be a mapping, not {content!r}")


def _check_whole(value: Any, where: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInputError(
            f"{where}: must be a whole number of at least {least}, not {value!r}"
        )


def _list(content: Any, where: str) -> list[Any]:
    if content is None:
        return []
    if not isinstance(content, list):
        raise InvalidInputError(f"{where}: must be a list, not {content!r}")
    return content


def _hint(wanted: str, given: Iterable[Any]) -> str:
    near = difflib.get_close_matches(wanted, [path for path in given if isinstance(path, str)], n=1)
    return f"; is {near[0]} misspelled?" if near else ""


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
