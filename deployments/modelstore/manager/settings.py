"""Settings of a manager."""

from dataclasses import dataclass
from pathlib import Path

from deployments.modelstore.device.driver import CUDA


@dataclass(frozen=True)
class ManagerSettings:
    """Settings of a manager."""

    #: None for a store of files alone.
    remote: str | None
    disk: Path
    host_bytes: int
    disk_bytes: int
    socket: Path
    #: 0 for a store without that tier.
    device_bytes: int = 0
    #: The GPU, as `CUDA_VISIBLE_DEVICES` names it: its number on the machine, or its UUID.
    device: str = "0"
    device_driver: str = CUDA
