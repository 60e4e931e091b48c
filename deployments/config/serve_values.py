"""The values in a config file that Ray Serve takes and Sojourn reads: their types and ranges.

Everything else in the file is Ray's own; `deployments.config.ray_schema` checks it.
"""

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
_PREFIX = re.compile(r"/|(/[^/\s{}?#]+)+")


class _Values(BaseModel):
    """Some of the keys of a mapping; the others are not looked at. Nothing is converted."""

    model_config = ConfigDict(strict=True, frozen=True)


class HttpOptions(_Values):
    """`http_options`: where the service listens."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)

    @field_validator("host")
    @classmethod
    def _is_a_host(cls, value: str) -> str:
        if not _HOST.fullmatch(value):
            raise ValueError("must be an address or a host's name")
        return value


class RuntimeEnvironment(_Values):
    """`runtime_env` of an application."""

    working_dir: str | None = None


class ApplicationValues(_Values):
    """An entry of `applications`."""

    name: str = Field(default="default", min_length=1)
    route_prefix: str | None = "/"
    import_path: str | None = None
    runtime_env: RuntimeEnvironment | None = None

    @field_validator("route_prefix")
    @classmethod
    def _is_a_prefix(cls, value: str | None) -> str | None:
        if value is not None and not _PREFIX.fullmatch(value):
            raise ValueError("must be / or begin with / and end without, as /digits does")
        return value


class ActorOptions(_Values):
    """`ray_actor_options`: what a replica takes of its node."""

    num_cpus: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    num_gpus: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    #: In bytes.
    memory: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class DeploymentValues(_Values):
    """An entry of `deployments`."""

    name: str | None = None
    user_config: dict[str, Any] | None = None
    ray_actor_options: ActorOptions | None = None
