"""`user_config` of a deployment: all that may change while a replica runs.

Ray hands a changed `user_config` to the running replicas.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from autoscaler.history.source import HistorySource
from autoscaler.settings import AutoscalerSettings
from deployments.access.config import AccessConfig
from deployments.config.routing import RETRIES
from deployments.config.validation import StrictModel, unknown_key, validate
from deployments.http.priorities import LEVELS, MAX_PRIORITY_LEVELS, PriorityLevels
from deployments.observability.config import TracingConfig
from policy.batcher.limits import Limits, limits_for
from policy.errors import InvalidInputError
from policy.objective import Objective, ServiceLevelObjective, Weights, fault_of_percentile
from policy.profile import Profile


class SLAConfig(StrictModel):
    """The SLA: `percentile` percent of the requests within `response_time_ms`."""

    #: A request is in time if it is answered within this.
    response_time_ms: float = Field(default=100.0, gt=0, allow_inf_nan=False)
    #: Percent of the requests that must be in time; 99, not 0.99.
    percentile: float = Field(default=99.0, gt=0, lt=100)

    @field_validator("percentile")
    @classmethod
    def _not_a_share(cls, value: float) -> float:
        if fault := fault_of_percentile(value):
            raise ValueError(fault)
        return value

    @property
    def objective(self) -> ServiceLevelObjective:
        """The SLA as `policy` and `autoscaler` take it."""
        return ServiceLevelObjective(self.response_time_ms, self.percentile)


class PolicyConfig(StrictModel):
    """The objective of the batching policy.

    ``sla`` keeps the SLA with the least energy, or, if the profile has no energy, with the least
    time that the device is busy: on a CPU, that can halve the replica's CPU time. ``weights``
    minimizes a weighted sum of mean response time and mean power. ``auto`` is ``sla`` if the
    profile has energy; otherwise it minimizes the mean response time.
    """

    #: What the policy minimizes, as above.
    objective: Literal["auto", "sla", "weights"] = "auto"
    #: With ``weights``: cost per ms of mean response time.
    latency_weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    #: With ``weights``: cost per W of mean power.
    energy_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    #: Share of the SLA's response time that batching may use; the rest is for the network.
    response_time_share: float = Field(default=0.9, gt=0, le=1)


class AutoscalerConfig(StrictModel):
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


class LimitsConfig(StrictModel):
    """What a replica accepts."""

    #: Rows that may wait; a request does not count those of lower priorities. None: as many as the
    #: device serves within the SLA.
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
    #: Levels of priority: 1 is the highest, this one the lowest.
    priority_levels: int = Field(default=LEVELS, ge=1, le=MAX_PRIORITY_LEVELS)
    #: Level of requests that name none. None: the lowest.
    default_priority_level: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _default_level(self) -> "LimitsConfig":
        if (self.default_priority_level or 1) > self.priority_levels:
            raise ValueError(
                f"default_priority_level must be at most priority_levels, {self.priority_levels}"
            )
        return self

    @property
    def priorities(self) -> PriorityLevels:
        """The priorities that requests may have."""
        return PriorityLevels(
            self.priority_levels, self.default_priority_level or self.priority_levels
        )


class HostedModelConfig(StrictModel):
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


class UserConfig(StrictModel):
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


def parse_user_config(content: Mapping[str, Any] | None) -> UserConfig:
    """Return the checked content of `user_config`.

    Raises
    ------
    InvalidInputError
        The first error, in one line: where it is, and what is allowed.
    """
    config = validate(UserConfig, content or {}, "user_config")
    way_ms = config.autoscaler.settings().delays.way_ms
    for sla in (config.sla, *(model.sla for model in config.models.values() if model.sla)):
        if way_ms > sla.response_time_ms:
            raise InvalidInputError(
                f"user_config: response_time_ms must be at least {way_ms:g}, which a request's way "
                "to the replica and back takes (request_delay_ms and reply_delay_ms), "
                f"not {sla.response_time_ms:g}"
            )
    return config
