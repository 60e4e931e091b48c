"""The configuration: what a replica is (`args`), and what may change while it runs (`user_config`).

Both are in one YAML file in Ray Serve's schema, which `serve deploy` accepts unchanged. Ray
replaces every replica if `args` change, but hands a changed `user_config` to the running replicas.
So everything that is tuned live (SLA, policy, autoscaler, limits) is in `user_config`, once.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from autoscaler.history.source import HistorySource
from autoscaler.settings import AutoscalerSettings
from deployments.access.config import AccessConfig
from deployments.batcher.limits import Limits, limits_for
from deployments.observability.config import TracingConfig
from deployments.routing import RETRIES
from deployments.serve_document import (
    Application,
    check_standbys,
    find_applications,
    unknown_key,
)
from deployments.validation import read_yaml, validate
from modelstore.names import STORE_PREFIX, ModelName
from modelstore.settings import ManagerSettings
from modelstore.wire import default_socket
from policy.errors import InvalidInputError
from policy.objective import Objective, ServiceLevelObjective, Weights
from policy.profile import Profile

#: The deployment's name in the config file.
DEPLOYMENT = "Replica"
#: The application builder that marks Sojourn's application in the config file.
IMPORT_PATH = "deployments.application:build"
#: The autoscaler, as an `autoscaling_config` must name it.
AUTOSCALING_POLICY = "autoscaler.ray_adapter:SojournAutoscalingPolicy"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(_Strict):
    """The model that a replica hosts, and its device."""

    #: Names the model in paths (``/v2/models/NAME/infer``), logs and metrics.
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    #: Label of the version, which every answer carries.
    version: str = Field(default="1", pattern=r"^[A-Za-z0-9._-]+$")
    #: The model's class, as ``module:Class``.
    import_path: str
    #: Keyword arguments of the class.
    options: dict[str, Any] = Field(default_factory=dict)
    #: ``auto`` takes a GPU if Ray gave the replica one (`num_gpus`).
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: The largest batch that the model can compute; the policy may use smaller ones.
    max_batch_size: int = Field(default=32, ge=1, le=1024)
    #: The file or ``store://[framework/]name[@version]`` that is loaded instead of the weights that
    #: the model asks for.
    weights: str | None = None
    #: A profile file or its content. None: the model's own profile, or one measured at the start.
    profile: str | dict[str, Any] | None = None
    #: How long a starting replica may run batches of all sizes, if the model compiles for each.
    warm_up_s: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    #: A batch that takes longer hangs. None: 10 s, or 20 full batches if those take longer.
    hang_after_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    #: The same for the first batch of a size that a model compiles for and the warm-up left out.
    compile_hang_after_s: float = Field(default=300.0, gt=0, allow_inf_nan=False)

    @field_validator("weights")
    @classmethod
    def _names_a_model(cls, value: str | None) -> str | None:
        if value is not None and value.startswith(STORE_PREFIX):
            try:
                ModelName.parse(value.removeprefix(STORE_PREFIX))
            except InvalidInputError as error:
                raise ValueError(str(error)) from None
        return value

    def load_profile(self) -> Profile | None:
        """Return the profile in the config, if there is one.

        Raises
        ------
        InvalidInputError
            The profile is invalid.
        """
        if self.profile is None:
            return None
        if isinstance(self.profile, str):
            return Profile.load(self.profile)
        return Profile.from_dict(self.profile)


class StoreConfig(_Strict):
    """The model store of each node. The first replica on a node starts its manager.

    A manager that runs keeps its settings. Each remote has a manager of its own.
    """

    #: URL below which the models lie: file://, https://, s3://, …
    remote: str = Field(pattern=r"^[a-z0-9]+://")
    #: Size of the memory tier.
    host_bytes: int = Field(default=8_000_000_000, ge=1)
    #: Size of the disk tier.
    disk_bytes: int = Field(default=50_000_000_000, ge=0)
    #: Folder of the disk tier. None: one for this remote below ~/.cache/sojourn.
    disk: Path | None = None
    #: Which model leaves a full tier first: the least recently used, the least commonly used, or
    #: the quickest to bring back.
    eviction: Literal["lru", "lcu", "reload-time"] = "lru"
    #: Drop a model from memory with its last user.
    eager: bool = False

    def settings(self) -> ManagerSettings:
        """Return the manager's settings on this machine."""
        place = hashlib.sha256(self.remote.encode()).hexdigest()[:12]
        return ManagerSettings(
            remote=self.remote,
            disk=self.disk or Path.home() / f".cache/sojourn/store-{place}",
            host_bytes=self.host_bytes,
            disk_bytes=self.disk_bytes,
            socket=default_socket().with_name(f"store-{place}.sock"),
            eviction=self.eviction,
            eager=self.eager,
        )


class ReplicaArgs(_Strict):
    """`args` of the application; a change replaces every replica."""

    #: The deployment's own model, which stays loaded.
    model: ModelConfig
    #: Further models that the same replicas serve.
    models: tuple[ModelConfig, ...] = ()
    #: When the further models are loaded: as a replica starts, or as a request asks for one.
    load_models: Literal["at_start", "on_demand"] = "at_start"
    #: None: replicas start no manager, and use the one that the user started, if they need one.
    store: StoreConfig | None = None

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [model.name for model in self.all_models]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise ValueError(f"two models have the name {repeated!r}")
        return self

    @property
    def all_models(self) -> tuple[ModelConfig, ...]:
        """The deployment's own model, and the further ones."""
        return (self.model, *self.models)


class SLAConfig(_Strict):
    """The SLA: `percentile` percent of the requests within `response_time_ms`."""

    #: A request is in time if it is answered within this.
    response_time_ms: float = Field(default=100.0, gt=0, allow_inf_nan=False)
    #: Percent of the requests that must be in time; 99, not 0.99.
    percentile: float = Field(default=99.0, gt=0, lt=100)

    @field_validator("percentile")
    @classmethod
    def _not_a_share(cls, value: float) -> float:
        if value <= 1:
            raise ValueError(f"is in percent; write {100 * value:g} for {100 * value:g}%")
        return value

    @property
    def objective(self) -> ServiceLevelObjective:
        """The SLA as `policy` and `autoscaler` take it."""
        return ServiceLevelObjective(self.response_time_ms, self.percentile)


class PolicyConfig(_Strict):
    """The objective of the batching policy.

    ``sla`` keeps the SLA with the least energy, or, if the profile has no energy, with the least
    time that the device is busy. ``weights`` minimizes a weighted sum of mean response time and
    mean power. ``auto`` is ``sla`` if the profile has energy; otherwise there is nothing to save,
    and it minimizes the mean response time.
    """

    #: What the policy minimizes, as above.
    objective: Literal["auto", "sla", "weights"] = "auto"
    #: With ``weights``: cost per ms of mean response time.
    latency_weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    #: With ``weights``: cost per W of mean power.
    energy_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    #: Share of the SLA's response time that batching may use; the rest is for the network.
    response_time_share: float = Field(default=0.9, gt=0, le=1)


class AutoscalerConfig(_Strict):
    """Settings of the autoscaler.

    `autoscaler.settings.AutoscalerSettings` has all but `dry_run`.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    #: Log decisions without changing the number of replicas.
    dry_run: bool = False
    #: Where the load of past days is to be read from (`autoscaler.history.source`).
    history: str | dict[str, Any] | None = None

    @model_validator(mode="after")
    def _settings(self) -> Self:
        self.settings()
        try:
            self.history_source()
        except InvalidInputError as error:
            raise ValueError(str(error)) from None
        return self

    def history_source(self) -> HistorySource | None:
        """Return where the past load is to be read from; None if that is not said."""
        return None if self.history is None else HistorySource.parse(self.history)

    def settings(self) -> AutoscalerSettings:
        """Return the autoscaler's settings.

        Raises
        ------
        ValueError
            A setting is unknown or out of range; pydantic turns this into a `ValidationError`.
        """
        given = self.model_extra or {}
        known = {field.name for field in fields(AutoscalerSettings)}
        for name in given:
            if name not in known:
                raise ValueError(f"{name}: {unknown_key(name, known | {'dry_run', 'history'})}")
        try:
            return AutoscalerSettings(**{"retries": RETRIES, **given})
        except InvalidInputError as error:
            raise ValueError(str(error)) from None


class LimitsConfig(_Strict):
    """What a replica accepts."""

    #: Rows that may wait. None: as many as the device serves within the SLA.
    waiting_room: int | None = Field(default=None, ge=1)
    #: Largest batch. None: the most efficient one that fits twice into the SLA's response time.
    batch_size_limit: int | None = Field(default=None, ge=1)
    #: What becomes of a request that cannot be answered within the SLA: "refuse" it at once, or
    #: "serve" it all the same.
    late: Literal["refuse", "serve"] = "refuse"
    #: Rows of one request.
    max_rows_per_request: int = Field(default=256, ge=1)
    #: Size of a body. None: what `max_rows_per_request` rows of the model's inputs take as JSON, at
    #: most 4 MiB.
    max_body_bytes: int | None = Field(default=None, ge=1)
    #: The largest body that HAProxy can send to another replica. None: a row of the model's inputs.
    #: Read when Ray starts. HAProxy's CPU time per request grows with it.
    retry_body_bytes: int | None = Field(default=None, ge=1, le=256 << 20)
    #: Bytes of the bodies of unanswered requests. None: a share of the memory.
    max_bytes_in_flight: int | None = Field(default=None, ge=1)
    #: How long a request may take to arrive, from its first byte to its last.
    receive_timeout_s: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    #: A request is given up after this time, whatever deadline it carries.
    max_timeout_ms: float = Field(default=60_000.0, gt=0, allow_inf_nan=False)


class HostedModelConfig(_Strict):
    """What `user_config` says of one model of several; what it leaves out holds for all."""

    #: The SLA of this model.
    sla: SLAConfig | None = None
    #: The policy of this model.
    policy: PolicyConfig | None = None
    #: The limits of this model.
    limits: LimitsConfig | None = None
    #: Label of the version to serve. Without `weights`, it is also the version in the model store.
    version: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+$")
    #: The weights to serve: new ones are loaded beside the old, and take over without a restart.
    weights: str | None = None


class UserConfig(_Strict):
    """`user_config` of the deployment; a change takes effect without restarting a replica."""

    #: The SLA of the service.
    sla: SLAConfig = SLAConfig()
    #: When batches start.
    policy: PolicyConfig = PolicyConfig()
    #: How the number of replicas is decided.
    autoscaler: AutoscalerConfig = AutoscalerConfig()
    #: What a replica accepts.
    limits: LimitsConfig = LimitsConfig()
    #: Who may use the service.
    access: AccessConfig = AccessConfig()
    #: None: no request is traced.
    tracing: TracingConfig | None = None
    #: What differs for a model, by its name.
    models: dict[str, HostedModelConfig] = Field(default_factory=dict)

    def for_model(self, name: str) -> "UserConfig":
        """Return what holds for a model."""
        own = self.models.get(name)
        if own is None:
            return self
        parts = {"sla": own.sla, "policy": own.policy, "limits": own.limits}
        return self.model_copy(update={key: part for key, part in parts.items() if part})

    def sla_at_replica(self) -> ServiceLevelObjective:
        """Return what the way to the replica and back leaves of the SLA."""
        return self.sla.objective.after(self.autoscaler.settings().delays.way_ms)

    def batcher_limits(self, profile: Profile) -> Limits:
        """Return the limits of a batcher on the device of `profile`."""
        return limits_for(
            profile,
            self.sla.objective,
            self.autoscaler.settings().delays,
            waiting_room=self.limits.waiting_room,
            batch_size_limit=self.limits.batch_size_limit,
            serve_late=self.limits.late == "serve",
        )

    def policy_objective(self, profile: Profile) -> Objective:
        """Return what the policy table of `profile` is solved for."""
        if self.policy.objective == "weights":
            return Weights(self.policy.latency_weight, self.policy.energy_weight)
        if self.policy.objective == "auto" and profile.energy_mj is None:
            return Weights()
        share = self.policy.response_time_share
        return ServiceLevelObjective(share * self.sla.response_time_ms, self.sla.percentile)


class ServiceConfig(_Strict):
    """The parts of a config file that concern one model, and the whole document."""

    application: str
    route_prefix: str
    http_host: str
    http_port: int
    args: ReplicaArgs
    user_config: UserConfig
    #: CPUs of a replica.
    num_cpus: float
    #: The least and the greatest number of replicas.
    replicas: tuple[int, int]
    document: dict[str, Any]

    @field_validator("route_prefix")
    @classmethod
    def _no_slash_at_end(cls, value: str) -> str:
        return value.rstrip("/")


def parse_user_config(content: Mapping[str, Any] | None) -> UserConfig:
    """Return the checked content of `user_config`.

    Raises
    ------
    InvalidInputError
        The first error, in one line: where it is, and what is allowed.
    """
    return validate(UserConfig, content or {}, "user_config")


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
    http_options = document.get("http_options") or {}
    user_config = parse_user_config(application.user_config)
    check_standbys(application, user_config.autoscaler.settings().standbys)
    return ServiceConfig(
        application=application.content.get("name", "default"),
        route_prefix=application.content.get("route_prefix") or "/",
        http_host=http_options.get("host", "127.0.0.1"),
        http_port=http_options.get("port", 8000),
        args=parse_args(application.content.get("args")),
        user_config=user_config,
        num_cpus=application.num_cpus,
        replicas=application.replicas,
        document=document,
    )


def parse_args(content: Any) -> ReplicaArgs:
    """Return the checked `args` of the application.

    Raises
    ------
    InvalidInputError
        The first error, in one line: where it is, and what is allowed.
    """
    return validate(ReplicaArgs, content or {}, "args")
