"""The interface of a device driver, one part for each side.

The holder, a child process of the manager, allocates and fills memory. Clients attach to it.
`deployments.modelstore.device.cuda` implements both for NVIDIA GPUs; tests have one on host memory.
"""

from dataclasses import dataclass
from typing import Any, Protocol

#: The driver that is used unless the settings name another.
CUDA = "deployments.modelstore.device.cuda"


@dataclass(frozen=True)
class Export:
    """Device memory that another process can attach to, even after its holder has died.

    The owner of the object closes the descriptor.
    """

    size_bytes: int
    descriptor: int


class Staging(Protocol):
    """Host memory from which the device copies; for one thread."""

    @property
    def buffer(self) -> memoryview: ...


class HolderDriver(Protocol):
    """The holder's side. `device` names the device in all processes of this machine."""

    device: str

    def allocate(self, size_bytes: int) -> int:
        """Return the handle of new memory; `OutOfDeviceMemoryError` if there is no room."""

    def staging(self, size_bytes: int) -> Staging: ...

    def write(self, handle: int, offset: int, staging: Staging, size_bytes: int) -> None:
        """Copy the first bytes of a staging buffer to the device; return when done."""

    def export(self, handle: int) -> Export: ...

    def free(self, handle: int) -> None:
        """Free memory; clients that are attached keep it."""


class Region(Protocol):
    """Device memory that this process is attached to until the last array is gone.

    As long, it keeps `hold`.
    """

    hold: object

    def read(self, offset: int, size_bytes: int) -> bytes: ...

    def array(self, offset: int, size_bytes: int) -> Any:
        """Return an object that `torch.as_tensor` turns into an array of bytes without a copy."""


class ClientDriver(Protocol):
    """A client's side; `torch_device` is torch's name of the device."""

    device: str
    torch_device: str

    def attach(self, export: Export) -> Region:
        """Attach to exported memory, or raise `DeviceError`; the descriptor stays the caller's."""
