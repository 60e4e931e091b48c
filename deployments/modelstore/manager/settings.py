"""Settings of a manager."""

from dataclasses import dataclass, field
from pathlib import Path

from deployments.modelstore import wire
from deployments.modelstore.device.driver import CUDA
from policy.errors import InvalidInputError


@dataclass(frozen=True)
class ManagerSettings:
    """Settings of a manager; `InvalidInputError` if a value is not possible."""

    #: None for a store of files alone.
    remote: str | None
    disk: Path
    host_bytes: int
    disk_bytes: int
    socket: Path = field(default_factory=wire.default_socket)
    #: 0 for a store without that tier.
    device_bytes: int = 0
    #: The GPU, as `CUDA_VISIBLE_DEVICES` names it: its number on the machine, or its UUID.
    device: str = "0"
    device_driver: str = CUDA
    #: Whether processes may bring files of their own (`sojourn.shared_weights`).
    files: bool = True

    def __post_init__(self) -> None:
        if self.remote is None and not self.files:
            raise InvalidInputError("a store without a remote and without files has nothing")
