"""The interface of a device driver, one part for each side.

The holder, a child process of the manager, allocates and fills memory. Clients attach to it.
`deployments.modelstore.device.cuda` implements both for NVIDIA GPUs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
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
    def buffer(self) -> memoryview:
        """The bytes, writable."""


class HolderDriver(Protocol):
    """The holder's side of a device.

    Attributes
    ----------
    device : str
        Names the device in all processes of this machine.
    """

    device: str

    def allocate(self, size_bytes: int) -> int:
        """Allocate at least this much memory; return its handle.

        Raises
        ------
        OutOfDeviceMemoryError
            The device has no room.
        """

    def staging(self, size_bytes: int) -> Staging:
        """Return host memory to copy from."""

    def write(self, handle: int, offset: int, staging: Staging, size_bytes: int) -> None:
        """Copy the first bytes of a staging buffer to the device; return when done."""

    def export(self, handle: int) -> Export:
        """Return the data with which another process attaches. The caller closes the descriptor."""

    def free(self, handle: int) -> None:
        """Free memory; clients that are attached keep it."""


class Region(Protocol):
    """Device memory that this process is attached to, until `close`.

    If `read_only`, the device refuses writes. `hold` is kept until the last array is gone, which
    also detaches the region.
    """

    read_only: bool
    hold: object

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return bytes of the region."""

    def array(self, offset: int, shape: Sequence[int], typestr: str) -> Any:
        """Return an object that `torch.as_tensor` turns into a tensor without a copy.

        The object keeps the region attached. `typestr` is numpy's name of the data type.
        """

    def close(self) -> None:
        """Detach. No array may be used after this."""


class ClientDriver(Protocol):
    """A client's side of a device.

    Attributes
    ----------
    device : str
        Names the device in all processes of this machine.
    """

    device: str
    torch_device: str

    def attach(self, export: Export) -> Region:
        """Attach to exported memory; the descriptor stays the caller's.

        Raises
        ------
        DeviceError
            It is not possible.
        """


def open_holder_driver(module: str) -> HolderDriver:
    """Open the first device that this process sees with the driver of `module`.

    Raises `DeviceError` if there is no device.
    """
    driver: HolderDriver = import_module(module).open_holder()
    return driver
