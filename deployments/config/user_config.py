"""`user_config` of a deployment: all that may change while a replica runs.

Ray hands a changed `user_config` to the running replicas.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from autoscaler.history.source import HistorySource
from autoscaler.settings import AUTO, AutoscalerSettings
from deployments.config.validation import StrictModel, fault, repeated, validate
from deployments.haproxy.routing import retries_in_force
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective, Weights, fault_of_percentile
from policy.profile import Profile
from policy.service_model import BatchingSettings, ServiceModel, service_model
from policy.tables.file import TableFile
from policy.try_delays import TryDelays

#: Scopes of a token: the model itself, or the pages on the service (``/sojourn/…``).
Scope = Literal["inference", "operations"]


def _percent(value: object) -> object:
    if isinstance(value, float | int) and (problem := fault_of_percentile(value)):
        raise ValueError(problem)
    return value


#: Not a share: 99, not 0.99.
Percent = Annotated[float, BeforeValidator(_percent)]


class SLAConfig(StrictModel):
    """The SLA: `percentile` percent of the requests within `response_time_ms`.

    In short: ``sla: 100ms@99``, or ``sla: p99=100ms``.
    """

    #: A request is in time if it is answered within this.
    response_time_ms: float = Field(default=100.0, gt=0, allow_inf_nan=False)
    #: Percent of the requests that must be in time; 99, not 0.99.
    percentile: Percent = Field(default=99.0, gt=0, lt=100)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, content: Any) -> Any:
        if not isinstance(content, str):
            return content
        try:
            sla = ServiceLevelObjective.parse(content)
        except InvalidInputError as error:
            raise ValueError(str(error)) from None
        return {"response_time_ms": sla.response_time_ms, "percentile": sla.percentile}

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

    #: The cost that the policy minimizes, as above.
    objective: Literal["auto", "sla", "weights"] = "auto"
    #: With ``weights``: cost per W of mean power, where a ms of mean response time costs 1.
    energy_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    #: A file that `sojourn solve --export` wrote: its policies, solved in advance for its objective
    #: and this profile, are in force at once.
    table: str | None = None

    @model_validator(mode="after")
    def _weights_weigh(self) -> Self:
        if self.table is not None and self.objective != "auto":
            raise ValueError("table has an objective of its own; omit objective and energy_weight")
        if self.energy_weight and self.objective != "weights":
            raise ValueError("energy_weight has no effect without `objective: weights`")
        return self


class ExpertAutoscalerConfig(StrictModel):
    """Settings for experiments with the autoscaler."""

    #: Percent of the one-minute windows that a forecast may miss in its back-test. None: adapted
    #: while running until `compliant_minutes` is met.
    risk_percent: float | None = Field(default=None, ge=1e-4, le=50)
    #: Length of the window over which the offered rate is averaged, in s.
    window_s: float = Field(default=10.0, ge=1, le=300)
    #: With ``min_replicas: 0``: the last replica goes after this long without a request, in s.
    scale_to_zero_delay_s: float = Field(default=300.0, ge=0, le=1e6)
    #: Factor by which the rate may suddenly rise and still be absorbed without new replicas.
    burst_factor: float = Field(default=1.0, ge=1, le=1e3)


class AutoscalerConfig(StrictModel):
    """How the number of replicas is decided."""

    #: Log decisions without changing the number of replicas.
    dry_run: bool = False
    #: The load of past days: a file, or ``{prometheus, query}``.
    history: str | dict[str, Any] | None = None
    #: Percent of the minutes that should comply with the SLA. It trades cost against compliance.
    compliant_minutes: Percent = Field(default=99.0, ge=50, le=99.99)
    #: How long fewer replicas must have been enough before some go, in s. None: as long as a
    #: replica takes to start, but at most 20 s.
    scale_down_delay_s: float | None = Field(default=None, ge=0, le=1e6)
    #: Standbys to keep besides the replicas that serve, or ``auto``: as many as pay.
    standbys: int | str = 0
    #: For experiments.
    expert: ExpertAutoscalerConfig = ExpertAutoscalerConfig()

    @field_validator("standbys", mode="before")
    @classmethod
    def _a_number_or_auto(cls, value: Any) -> Any:
        if value != AUTO and not (type(value) is int and value >= 0):
            raise ValueError(f"must be {AUTO} or a whole number of at least 0")
        return value

    @field_validator("history")
    @classmethod
    def _can_be_read(cls, value: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        try:
            if value is not None:
                HistorySource.parse(value)
        except InvalidInputError as error:
            raise ValueError(str(error)) from None
        return value

    def history_source(self) -> HistorySource | None:
        """Return where the past load is to be read from; None if that is not said."""
        return None if self.history is None else HistorySource.parse(self.history)

    def settings(self) -> AutoscalerSettings:
        """Return the settings as the autoscaler takes them."""
        expert = self.expert.model_dump(exclude={"risk_percent"})
        risk_percent = self.expert.risk_percent
        return AutoscalerSettings(
            compliant_minutes=self.compliant_minutes,
            risk=None if risk_percent is None else risk_percent / 100,
            scale_down_delay_s=self.scale_down_delay_s,
            standbys=self.standbys,
            retries=retries_in_force(),
            **expert,
        )


class ExpertLimitsConfig(StrictModel):
    """Limits whose defaults follow from the model and the machine."""

    #: Rows that may wait; a request does not count those of lower priorities. None: as many as the
    #: device serves within the SLA.
    max_queue_rows: int | None = Field(default=None, ge=1)
    #: Largest batch. Batches are never larger than the most efficient one that fits twice into the
    #: SLA's response time, unless `late` is "serve".
    batch_size_limit: int | None = Field(default=None, ge=1)
    #: The largest body that HAProxy can send to another replica. None: a row of the model's inputs.
    #: Read when Ray starts. HAProxy's CPU time per request grows with it.
    retry_body_bytes: int | None = Field(default=None, ge=1, le=256 << 20)
    #: Bytes of the bodies of unanswered requests. None: a share of the memory.
    max_bytes_in_flight: int | None = Field(default=None, ge=1)
    #: How long a request may take to arrive, from its first byte to its last.
    receive_timeout_s: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    #: A request is given up after this time, whatever deadline it carries.
    max_timeout_ms: float = Field(default=60_000.0, gt=0, allow_inf_nan=False)
    #: Levels of priority: 1 is the highest, this one the lowest, which is the default.
    priority_levels: int = Field(default=2, ge=1, le=100)


class LimitsConfig(StrictModel):
    """Limits on the requests that a replica accepts."""

    #: The fate of a request that cannot be answered within the SLA: "refuse" it at once, or
    #: "serve" it all the same.
    late: Literal["refuse", "serve"] = "refuse"
    #: Rows of one request.
    max_rows_per_request: int = Field(default=256, ge=1)
    #: Size of a body. None: what `max_rows_per_request` rows of the model's inputs take as JSON, at
    #: most 4 MiB.
    max_body_bytes: int | None = Field(default=None, ge=1)
    #: Settings that rarely need a change.
    expert: ExpertLimitsConfig = ExpertLimitsConfig()


class TokenConfig(StrictModel):
    """One bearer token; `sojourn token` makes it and prints this."""

    #: Names the token in logs and metrics.
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    #: SHA-256 of the token.
    hash: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    #: Scopes of the token.
    scopes: list[Scope] = Field(default=["inference"], min_length=1)
    #: Requests per second to the service as a whole. None: no limit.
    requests_per_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    #: Requests at once after a pause. None: those of one second, and at least 1.
    burst: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    #: The highest priority that its requests may claim; 1 is the highest of all.
    highest_priority: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _burst_needs_a_rate(self) -> Self:
        if self.burst is not None and self.requests_per_s is None:
            raise ValueError("burst needs requests_per_s")
        return self

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the token."""
        return bytes.fromhex(self.hash.partition(":")[2])


class AccessConfig(StrictModel):
    """Access to the service: without `tokens` for everyone, with an empty list for nobody."""

    #: None: everything is open to everyone.
    tokens: list[TokenConfig] | None = None
    #: Scopes that need no token all the same.
    anonymous: list[Scope] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check(self) -> Self:
        tokens = self.tokens or []
        for what in ("name", "hash"):
            values = [getattr(token, what) for token in tokens]
            if (twice := repeated(values)) is not None:
                raise ValueError(f"two tokens have the {what} {twice!r}")
        if self.anonymous and self.tokens is None:
            raise ValueError("anonymous needs tokens; without tokens everything is open")
        return self

    def closed(self, scope: Scope) -> bool:
        """Return whether `scope` needs a token."""
        return self.tokens is not None and scope not in self.anonymous


class ExpertTracingConfig(StrictModel):
    """A bound on what tracing costs."""

    #: Most requests traced per second, whatever clients decide.
    max_per_s: float = Field(default=100.0, gt=0, allow_inf_nan=False)


class TracingConfig(StrictModel):
    """Export spans of requests to an OpenTelemetry collector."""

    #: Percent of the requests to trace, of those whose clients have not decided it (`traceparent`).
    sample_percent: float = Field(default=1.0, ge=0, le=100)
    #: Where spans go, by OTLP over HTTP.
    endpoint: str = Field(default="http://127.0.0.1:4318/v1/traces", pattern=r"^https?://")
    #: Settings that rarely need a change.
    expert: ExpertTracingConfig = ExpertTracingConfig()


class HostedModelConfig(StrictModel):
    """One model of several: its `sla`, `policy` and `limits`, where they are not those of all."""

    #: The SLA of this model.
    sla: SLAConfig | None = None
    #: The policy of this model.
    policy: PolicyConfig | None = None
    #: The limits of this model.
    limits: LimitsConfig | None = None
    #: Label of the version to serve. Without `weights`, it is also the version in the model store.
    version: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+$")
    #: The weights to serve: new ones are loaded while the old serve, and need no restart.
    weights: str | None = None


class UserConfig(StrictModel):
    """`user_config` of the deployment; a change takes effect without restarting a replica."""

    block = "user_config"

    #: The SLA of the service.
    sla: SLAConfig = SLAConfig()
    #: The most power of all replicas together, in W, whatever becomes of the SLA: policy and number
    #: of replicas are those of the shortest response time within it. None: no ceiling.
    power_limit_w: float | None = Field(default=None, gt=0, le=1e9)
    #: When batches start.
    policy: PolicyConfig = PolicyConfig()
    #: How the number of replicas is decided.
    autoscaler: AutoscalerConfig = AutoscalerConfig()
    #: Limits on the requests that a replica accepts.
    limits: LimitsConfig = LimitsConfig()
    #: Access to the service.
    access: AccessConfig = AccessConfig()
    #: None: no request is traced.
    tracing: TracingConfig | None = None
    #: Settings that differ for a model, by its name.
    models: dict[str, HostedModelConfig] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _power_limit_decides(self) -> Self:
        if self.power_limit_w is not None:
            if self.policy != PolicyConfig():
                raise ValueError("power_limit_w decides the policy; omit policy")
            if self.autoscaler.standbys:
                raise ValueError("power_limit_w does not count standbys; set standbys to 0")
        return self

    def for_model(self, name: str) -> "UserConfig":
        """Return what holds for a model."""
        own = self.models.get(name)
        if own is None:
            return self
        parts = {"sla": own.sla, "policy": own.policy, "limits": own.limits}
        return self.model_copy(update={key: part for key, part in parts.items() if part})

    def service_model(self, profile: Profile) -> ServiceModel:
        """Return how a replica on the device of `profile` batches."""
        delays = self.autoscaler.settings().delays
        return service_model(profile, self.sla.objective, delays, self.batching())

    def batching(self) -> BatchingSettings:
        return BatchingSettings(
            objective=self.policy.objective,
            weights=Weights(energy_weight=self.policy.energy_weight),
            max_queue_rows=self.limits.expert.max_queue_rows,
            batch_size_limit=self.limits.expert.batch_size_limit,
            serve_late=self.limits.late == "serve",
            table=None if self.policy.table is None else TableFile.load(self.policy.table),
        )


def parse_user_config(content: Mapping[str, Any] | None, *place: str | int) -> UserConfig:
    """Return the checked content of `user_config`; `ConfigError` has the first error."""
    config = validate(UserConfig, content or {}, *place, "user_config")
    least_ms = TryDelays().round_trip_ms
    slas = {(): config.sla} | {("models", n): model.sla for n, model in config.models.items()}
    for where, sla in slas.items():
        if sla is not None and sla.response_time_ms < least_ms:
            raise fault(
                (*place, "user_config", *where, "sla"),
                f"response_time_ms must be at least {least_ms:g}, which a request takes to the "
                f"replica and back, not {sla.response_time_ms:g}",
            )
    return config
