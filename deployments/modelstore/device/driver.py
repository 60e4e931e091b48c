"""What the device tier needs of a kind of device: two small interfaces, one for each side.

The holder, a process of the manager's, allocates memory and fills it. Clients attach to it.
`deployments.modelstore.device.cuda` implements both for NVIDIA's GPUs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

#: A driver with this name is used unless the settings name another.
CUDA = "deployments.modelstore.device.cuda"


@dataclass(frozen=True)
class Export:
    """Device memory as another process can attach to it.

    Attributes
    ----------
    kind : str
        How it is shared; each driver has kinds of its own.
    size_bytes : int
        What was allocated.
    handle : str
        What the driver needs beside the descriptor.
    descriptor : int or None
        A file descriptor that stands for the memory, if this kind has one. Whoever holds the
        object closes it.
    """

    kind: str
    size_bytes: int
    handle: str = ""
    descriptor: int | None = None

    def to_message(self) -> list[Any]:
        """Return all but the descriptor, as JSON values."""
        return [self.kind, self.size_bytes, self.handle]


class Staging(Protocol):
    """Host memory from which the device copies; only one thread uses it."""

    @property
    def buffer(self) -> memoryview:
        """Its bytes, to be written to."""


class HolderDriver(Protocol):
    """The holder's side of a device.

    Attributes
    ----------
    device : str
        Names the device in all processes of this machine.
    outlives_holder : bool
        Whether exported memory stays valid when the holder dies.
    """

    device: str
    outlives_holder: bool

    def allocate(self, size_bytes: int) -> int:
        """Return a handle of at least this much memory.

        Raises
        ------
        OutOfDeviceMemoryError
            The device has no room.
        """

    def staging(self, size_bytes: int) -> Staging:
        """Return memory to copy from."""

    def write(self, handle: int, offset: int, staging: Staging, size_bytes: int) -> None:
        """Copy the first bytes of a staging buffer to the device, and return when it is done."""

    def export(self, handle: int) -> Export:
        """Return what another process needs to attach. The descriptor is the caller's to close."""

    def free(self, handle: int) -> None:
        """Free memory, as far as no client is attached to it."""


class Region(Protocol):
    """Device memory that this process is attached to, until `close`.

    Attributes
    ----------
    read_only : bool
        Whether the device refuses to write to it.
    hold : object
        What is kept until the last array is gone, when the region is detached by itself.
    """

    read_only: bool
    hold: object

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return some of its bytes."""

    def array(self, offset: int, shape: Sequence[int], typestr: str) -> Any:
        """Return an object from which `torch.as_tensor` makes a tensor without a copy.

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
    torch_device : str
        Torch's name of the device.
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
    """Open the device that this process sees first, to hold memory of it.

    Parameters
    ----------
    module : str
        The module that implements the driver.

    Raises
    ------
    DeviceError
        There is no such device.
    """
    driver: HolderDriver = import_module(module).open_holder()
    return driver
