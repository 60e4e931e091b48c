"""The configuration: what a replica is (`args`), and what may change while it runs (`user_config`).

Both stand in one YAML file in Ray Serve's own schema, which `serve deploy` takes as it is. Ray
replaces every replica when `args` change, and hands a changed `user_config` to the running ones;
so what is tuned live (SLA, policy, autoscaler, limits) is in the latter, and written there once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from autoscaler.reports import AutoscalerSettings
from deployments.routing import RETRIES
from policy.errors import InvalidInputError
from policy.profile import Profile
from policy.table import Objective, ServiceLevelObjective, Weights

#: The deployment's name in the config file.
DEPLOYMENT = "Replica"
#: What builds the application.
IMPORT_PATH = "deployments.application:build"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(_Strict):
    """Which model a replica hosts, and where."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    version: str = Field(default="1", pattern=r"^[A-Za-z0-9._-]+$")
    import_path: str
    options: dict[str, Any] = Field(default_factory=dict)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    max_batch_size: int = Field(default=32, ge=1, le=1024)
    #: A profile file or its content; none: the replica measures one as it starts.
    profile: str | dict[str, Any] | None = None

    def load_profile(self) -> Profile | None:
        """Give the profile of the config, if it has one."""
        if self.profile is None:
            return None
        if isinstance(self.profile, str):
            return Profile.load(self.profile)
        return Profile.from_dict(self.profile)


class ReplicaArgs(_Strict):
    """`args` of the application: a change replaces every replica."""

    model: ModelConfig


class SLAConfig(_Strict):
    """The contract: `percentile` percent of the requests within `response_time_ms`."""

    response_time_ms: float = Field(default=100.0, gt=0, allow_inf_nan=False)
    percentile: float = Field(default=99.0, gt=0, lt=100)

    @property
    def objective(self) -> ServiceLevelObjective:
        """The SLA as the mathematics takes it."""
        return ServiceLevelObjective(self.response_time_ms, self.percentile)


class PolicyConfig(_Strict):
    """What batching aims at.

    ``sla``: the least energy that keeps the SLA; where the profile knows no energy, the least time
    that the device is busy. ``weights``: the least weighted sum of mean response time and power.
    ``auto``: ``sla`` where the profile knows the energy; else there is nothing to save, and the
    mean response time is least.
    """

    objective: Literal["auto", "sla", "weights"] = "auto"
    latency_weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    energy_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    #: The share of the SLA's response time that batching may use; the rest is for the network.
    response_time_share: float = Field(default=0.9, gt=0, le=1)


class AutoscalerConfig(_Strict):
    """How replicas are counted; see `autoscaler.reports.AutoscalerSettings`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    #: Only say what would be done; the number of replicas stays as it is.
    dry_run: bool = False

    @model_validator(mode="after")
    def _settings(self) -> Self:
        self.settings()
        return self

    def settings(self) -> AutoscalerSettings:
        """Give the checked settings."""
        try:
            return AutoscalerSettings(**{"retries": RETRIES, **(self.model_extra or {})})
        except TypeError as error:
            raise ValueError(str(error).partition("() ")[2]) from None
        except InvalidInputError as error:
            raise ValueError(str(error)) from None


class LimitsConfig(_Strict):
    """What a replica takes before it refuses."""

    #: Rows that may wait; none: as many as the device serves in time.
    waiting_room: int | None = Field(default=None, ge=1)
    max_rows_per_request: int = Field(default=256, ge=1)
    max_body_bytes: int = Field(default=4 << 20, ge=1)


class UserConfig(_Strict):
    """`user_config` of the deployment: a change acts without restarting a replica."""

    sla: SLAConfig = SLAConfig()
    policy: PolicyConfig = PolicyConfig()
    autoscaler: AutoscalerConfig = AutoscalerConfig()
    limits: LimitsConfig = LimitsConfig()

    def objective(self, profile: Profile) -> Objective:
        """Give what the policy table of `profile` is to be solved for."""
        if self.policy.objective == "weights":
            return Weights(self.policy.latency_weight, self.policy.energy_weight)
        if self.policy.objective == "auto" and profile.energy_mj is None:
            return Weights()
        share = self.policy.response_time_share
        return ServiceLevelObjective(share * self.sla.response_time_ms, self.sla.percentile)


class ServiceConfig(_Strict):
    """A config file, read: the parts of Sojourn's application in it."""

    application: str
    route_prefix: str
    http_host: str
    http_port: int
    args: ReplicaArgs
    user_config: UserConfig
    document: dict[str, Any]

    @field_validator("route_prefix")
    @classmethod
    def _no_slash_at_end(cls, value: str) -> str:
        return value.rstrip("/")


def parse_user_config(content: Mapping[str, Any] | None) -> UserConfig:
    """Check the content of `user_config`.

    Raises
    ------
    InvalidInputError
        One line: the first thing that is wrong, and what is allowed.
    """
    try:
        return UserConfig.model_validate(content or {})
    except ValidationError as error:
        raise InvalidInputError(f"user_config: {first_line(error)}") from None


def load_service_config(path: str | Path) -> ServiceConfig:
    """Read a config file and check all of it.

    Raises
    ------
    InvalidInputError
        One line: the first thing that is wrong, and what is allowed.
    """
    try:
        document = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise InvalidInputError(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise InvalidInputError(f"{path}: not YAML{where}") from error
    try:
        return _service_config(document)
    except ValidationError as error:
        raise InvalidInputError(f"{path}: {first_line(error)}") from None
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def _service_config(document: Any) -> ServiceConfig:
    applications = document.get("applications") if isinstance(document, dict) else None
    if not isinstance(applications, list):
        raise InvalidInputError("applications: missing; the file has Ray Serve's schema")
    ours = [
        application
        for application in applications
        if isinstance(application, dict) and application.get("import_path") == IMPORT_PATH
    ]
    if len(ours) != 1:
        raise InvalidInputError(
            f"applications: {len(ours)} have import_path {IMPORT_PATH}, must be one"
        )
    application = ours[0]
    deployments = {
        entry.get("name"): entry
        for entry in application.get("deployments") or []
        if isinstance(entry, dict)
    }
    http_options = document.get("http_options") or {}
    return ServiceConfig(
        application=application.get("name", "default"),
        route_prefix=application.get("route_prefix") or "/",
        http_host=http_options.get("host", "127.0.0.1"),
        http_port=http_options.get("port", 8000),
        args=ReplicaArgs.model_validate(application.get("args") or {}),
        user_config=parse_user_config(deployments.get(DEPLOYMENT, {}).get("user_config")),
        document=document,
    )


def first_line(error: ValidationError) -> str:
    """Say in one line what pydantic found first: where, what, and what was given."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    given = "" if isinstance(first["input"], dict) else f", not {first['input']!r}"
    return f"{where}: {message[:1].lower()}{message[1:]}{given}" if where else message
