"""Ray Serve's schema, as far as Sojourn reads it; a test compares the keys with Ray's.

Keys of type Any are Ray's alone: `deployments.config.ray_schema` checks their values. Ray Serve
ignores keys that it does not know, so that a misspelled one silently becomes a default; here it is
an error, as is one that has no effect on Sojourn's replicas (`_refused`).
"""

import re
from typing import Any

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from deployments.config.validation import StrictModel, without_effect

_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
_PREFIX = re.compile(r"/|(/[^/\s{}?#]+)+")


#: Ray's defaults, in s, with which it holds back what the autoscaler decides.
_UPSCALE_DELAY_S, _DOWNSCALE_DELAY_S = 30.0, 600.0


def _refused(remedy: str) -> Any:
    """Return the field of a key of Ray's that does nothing here."""
    return Field(default=None, json_schema_extra={"remedy": remedy})


_TLS = "Sojourn serves plain HTTP: end TLS in front of it"
_DECIDES = "Sojourn's autoscaler decides on the number of replicas: remove it"
_BATCHER = "the batcher queues and refuses requests: see user_config.limits"


class RaySection(StrictModel):
    """A part of Ray's schema."""

    @field_validator("*")
    @classmethod
    def _has_an_effect(cls, value: object, info: ValidationInfo) -> object:
        extra = cls.model_fields[str(info.field_name)].json_schema_extra
        if value is not None and isinstance(extra, dict):
            raise without_effect(str(extra["remedy"]))
        return value


class HttpOptions(RaySection):
    """`http_options`: where the service listens."""

    block = "http_options"

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)
    keep_alive_timeout_s: Any = None
    request_timeout_s: Any = _refused("user_config.limits.expert.max_timeout_ms bounds requests")
    root_path: Any = _refused("an application answers below its route_prefix")
    ssl_ca_certs: Any = _refused(_TLS)
    ssl_certfile: Any = _refused(_TLS)
    ssl_keyfile: Any = _refused(_TLS)
    ssl_keyfile_password: Any = _refused(_TLS)

    @field_validator("host")
    @classmethod
    def _is_a_host(cls, value: str) -> str:
        if not _HOST.fullmatch(value):
            raise ValueError("must be an address or a host's name")
        return value


class PolicyArguments(StrictModel):
    """`policy_kwargs` of Sojourn's autoscaler."""

    #: The most replicas that all deployments which name a budget may have together.
    replica_budget: int | None = Field(default=None, ge=1)


class AutoscalingPolicy(RaySection):
    """The `policy` of an `autoscaling_config`, or the `autoscaling_policy` of an application."""

    policy_function: Any = None
    policy_kwargs: PolicyArguments | None = None


class AutoscalingConfig(RaySection):
    """`autoscaling_config` of a deployment."""

    min_replicas: int = Field(default=1, ge=0)
    max_replicas: int = Field(default=1, ge=1)
    initial_replicas: int | None = Field(default=None, ge=0)
    metrics_interval_s: float = 10.0
    policy: AutoscalingPolicy | None = None
    upscale_delay_s: float = _UPSCALE_DELAY_S
    downscale_delay_s: float = _DOWNSCALE_DELAY_S
    look_back_period_s: Any = None
    target_ongoing_requests: Any = _refused(_DECIDES)
    aggregation_function: Any = _refused(_DECIDES)
    downscale_smoothing_factor: Any = _refused(_DECIDES)
    downscale_to_zero_delay_s: Any = _refused(
        "set user_config.autoscaler.expert.scale_to_zero_delay_s"
    )
    downscaling_factor: Any = _refused(_DECIDES)
    smoothing_factor: Any = _refused(_DECIDES)
    upscale_smoothing_factor: Any = _refused(_DECIDES)
    upscaling_factor: Any = _refused(_DECIDES)


class ActorOptions(RaySection):
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


class DeploymentEntry(RaySection):
    """An entry of `deployments`."""

    block = "applications.deployments"

    name: str | None = None
    num_replicas: int | None = Field(default=None, ge=1)
    autoscaling_config: AutoscalingConfig | None = None
    ray_actor_options: ActorOptions | None = None
    user_config: dict[str, Any] | None = None
    backpressure_config: Any = _refused(_BATCHER)
    deployment_actors: Any = None
    gang_scheduling_config: Any = _refused("each replica serves by itself: remove it")
    graceful_shutdown_timeout_s: Any = None
    graceful_shutdown_wait_loop_s: Any = None
    health_check_period_s: Any = None
    health_check_timeout_s: Any = None
    logging_config: Any = None
    max_ongoing_requests: Any = _refused(_BATCHER)
    max_queued_requests: Any = _refused(_BATCHER)
    max_replicas_per_node: Any = None
    max_surge_percent: Any = None
    placement_group_bundle_label_selector: Any = None
    placement_group_bundles: Any = None
    placement_group_strategy: Any = None
    request_router_config: Any = None
    rolling_update_percentage: Any = None


class RuntimeEnvironment(StrictModel):
    """`runtime_env` of an application; Ray checks its other keys."""

    model_config = ConfigDict(extra="ignore")

    working_dir: str | None = None


class ApplicationEntry(RaySection):
    """An entry of `applications`."""

    block = "applications"

    name: str = Field(default="default", min_length=1)
    route_prefix: str | None = "/"
    import_path: str | None = None
    runtime_env: RuntimeEnvironment | None = None
    args: dict[str, Any] | None = None
    deployments: list[DeploymentEntry] | None = None
    #: Of a pipeline whose stages are deployments.
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


class BuiltApplication(StrictModel):
    """Any entry of `applications`; only Ray checks those that Sojourn does not build."""

    model_config = ConfigDict(extra="ignore")

    import_path: str | None = None


class ServeDocument(RaySection):
    """The whole file."""

    block = ""

    applications: list[BuiltApplication]
    http_options: HttpOptions | None = None
    proxy_location: Any = None
    controller_options: Any = None
    grpc_options: Any = _refused("`sojourn grpc` serves gRPC in front of a service: remove it")
    logging_config: Any = None
    target_capacity: Any = None
    tracing_config: Any = _refused("user_config.tracing exports spans")

    @field_validator("proxy_location")
    @classmethod
    def _has_a_proxy(cls, value: object) -> object:
        if value == "Disabled":
            raise ValueError("must be HeadOnly or EveryNode: requests come through HAProxy")
        return value
