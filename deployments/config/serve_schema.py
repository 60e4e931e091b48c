"""Ray Serve's schema, as far as Sojourn reads it; a test compares the keys with Ray's.

Keys of type Any are Ray's alone: `deployments.config.ray_schema` checks their values. Ray Serve
ignores keys that it does not know, so that a misspelled one silently becomes a default; here it is
an error, as is one that has no effect.
"""

import re
from typing import Any

from pydantic import ConfigDict, Field, field_validator

from deployments.config.validation import StrictModel, without_effect

_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
_PREFIX = re.compile(r"/|(/[^/\s{}?#]+)+")


class HttpOptions(StrictModel):
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


class AutoscalingPolicy(StrictModel):
    """The `policy` of an `autoscaling_config`, or the `autoscaling_policy` of an application."""

    policy_function: Any = None
    policy_kwargs: dict[str, Any] | None = None


class AutoscalingConfig(StrictModel):
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


class ActorOptions(StrictModel):
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


class DeploymentEntry(StrictModel):
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


class RuntimeEnvironment(StrictModel):
    """`runtime_env` of an application; Ray checks its other keys."""

    model_config = ConfigDict(extra="ignore")

    working_dir: str | None = None


class ApplicationEntry(StrictModel):
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


class ServeDocument(StrictModel):
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
