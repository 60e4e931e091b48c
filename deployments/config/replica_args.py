"""`args` of a deployment: what a replica is. Ray replaces every replica if they change."""

import hashlib
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from deployments.config.validation import StrictModel, repeated, validate
from deployments.modelstore.manager.settings import ManagerSettings
from deployments.modelstore.names import STORE_PREFIX, ModelName
from deployments.modelstore.wire import default_socket
from policy.errors import InvalidInputError
from policy.profile import Profile


class ExpertModelConfig(StrictModel):
    """Times that are measured, unless they are given."""

    #: How long a starting replica may run batches of all sizes, if the model compiles for each.
    warm_up_s: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    #: A batch that takes longer hangs. None: 10 s, or 20 full batches if those take longer.
    hang_after_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class ModelConfig(StrictModel):
    """The model that a replica hosts, and its device; `models` are further ones, alike."""

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
    #: Share the files that the model, or any library, loads with safetensors or torch, through the
    #: node's model store.
    share: bool = False
    #: A profile file or its content. None: the model's own profile, or one measured at the start.
    profile: str | dict[str, Any] | None = None
    #: Settings that rarely need a change.
    expert: ExpertModelConfig = ExpertModelConfig()

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
        """Return the profile in the config, if any; `InvalidInputError` if it is invalid."""
        if self.profile is None:
            return None
        if isinstance(self.profile, str):
            return Profile.load(self.profile)
        return Profile.from_dict(self.profile)


class ExpertStoreConfig(StrictModel):
    """Where the store's tiers are."""

    #: Size of the tier of GPU memory, on nodes with a GPU; 0: none.
    device_bytes: int = Field(default=0, ge=0)
    #: The GPU of the GPU memory's tier: its number on the node, or its UUID.
    device: str = "0"
    #: Folder of the disk tier. None: one for this remote below ~/.cache/sojourn.
    disk: str | None = None


class StoreConfig(StrictModel):
    """The model store of each node. The first replica on a node starts its manager.

    A manager that runs keeps its settings. Each remote has a manager of its own.
    """

    #: URL below which the models lie: file://, https://, s3://, … None: only files are shared.
    remote: str | None = Field(default=None, pattern=r"^[a-z0-9]+://")
    #: Size of the memory tier.
    host_bytes: int = Field(default=8_000_000_000, ge=1)
    #: Size of the disk tier.
    disk_bytes: int = Field(default=50_000_000_000, ge=0)
    #: Settings that rarely need a change.
    expert: ExpertStoreConfig = ExpertStoreConfig()

    def settings(self) -> ManagerSettings:
        place = hashlib.sha256((self.remote or "").encode()).hexdigest()[:12]
        return ManagerSettings(
            remote=self.remote,
            disk=Path(self.expert.disk or Path.home() / f".cache/sojourn/store-{place}"),
            host_bytes=self.host_bytes,
            device_bytes=self.expert.device_bytes,
            device=self.expert.device,
            disk_bytes=self.disk_bytes,
            socket=default_socket().with_name(f"store-{place}.sock"),
        )


class ReplicaArgs(StrictModel):
    """`args` of the application; a change replaces every replica."""

    block = "applications.args"

    #: The deployment's own model, which stays loaded.
    model: ModelConfig
    #: Further models that the same replicas serve.
    models: list[ModelConfig] = Field(default_factory=list)
    #: When the further models are loaded: as a replica starts, or as a request asks for one.
    load_models: Literal["at_start", "on_demand"] = "at_start"
    #: None: replicas start no manager, and use the one that the user started, if they need one.
    store: StoreConfig | None = None

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if (twice := repeated([model.name for model in self.all_models])) is not None:
            raise ValueError(f"two models have the name {twice!r}")
        return self

    @property
    def all_models(self) -> tuple[ModelConfig, ...]:
        """The deployment's own model, and the further ones."""
        return (self.model, *self.models)


def parse_args(content: Any, *place: str | int) -> ReplicaArgs:
    """Return the checked `args` of the application; `ConfigError` has the first error."""
    return validate(ReplicaArgs, content or {}, *place, "args")
