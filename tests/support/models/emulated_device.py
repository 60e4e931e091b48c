"""A device whose memory is host memory: real across processes, so that tests need no GPU.

The holder's process imports this module as its driver. Which of two kinds of memory it has, and
how much, its environment says: with descriptors that outlive it, as CUDA's virtual memory, or with
handles that are of no use without it, as CUDA's IPC.
"""

import mmap
import os
import socket
from pathlib import Path

import numpy as np

from deployments.modelstore.device.driver import Export
from deployments.modelstore.errors import DeviceError, OutOfDeviceMemoryError

MODULE = __name__
DEVICE = "emulated"
#: ``descriptors`` (the default), ``handles``, or ``broken``: a device that cannot be used.
KIND_VARIABLE = "EMULATED_DEVICE"
#: Bytes of the device.
SIZE_VARIABLE = "EMULATED_DEVICE_BYTES"
#: A file; the holder that finds it deletes it, and kills itself in the middle of a copy.
DEATH_VARIABLE = "EMULATED_DEVICE_DIES"


class Buffer:
    def __init__(self, size_bytes):
        self.buffer = memoryview(bytearray(size_bytes))


class EmulatedHolder:
    device = DEVICE

    def __init__(self, kind, size_bytes):
        self.outlives_holder = kind == "descriptors"
        self._free_bytes = size_bytes
        self._sizes = {}
        if not self.outlives_holder:
            # An abstract socket is gone with its process, and so are names that contain it.
            self._alive = socket.socket(socket.AF_UNIX)
            self._alive.bind(f"\0emulated-device-{os.getpid()}")
            self._alive.listen()

    def allocate(self, size_bytes):
        if size_bytes > self._free_bytes:
            raise OutOfDeviceMemoryError(f"{self._free_bytes} of {size_bytes} bytes are free")
        self._free_bytes -= size_bytes
        descriptor = os.memfd_create("device")
        os.ftruncate(descriptor, size_bytes)
        self._sizes[descriptor] = size_bytes
        return descriptor

    def staging(self, size_bytes):
        return Buffer(size_bytes)

    def write(self, handle, offset, staging, size_bytes):
        dies = os.environ.get(DEATH_VARIABLE)
        if dies and Path(dies).exists():
            Path(dies).unlink()
            os._exit(1)
        assert os.pwrite(handle, staging.buffer[:size_bytes], offset) == size_bytes

    def export(self, handle):
        if self.outlives_holder:
            return Export("descriptor", self._sizes[handle], descriptor=os.dup(handle))
        return Export("handle", self._sizes[handle], f"{os.getpid()}:{handle}")

    def free(self, handle):
        self._free_bytes += self._sizes.pop(handle)
        os.close(handle)


class Mapping(mmap.mmap):
    hold = None


class EmulatedRegion:
    read_only = False

    def __init__(self, descriptor, size_bytes):
        self._mapping = Mapping(descriptor, size_bytes)

    @property
    def hold(self):
        return self._mapping.hold

    @hold.setter
    def hold(self, hold):
        self._mapping.hold = hold

    def read(self, offset, size_bytes):
        return self._mapping[offset : offset + size_bytes]

    def array(self, offset, shape, typestr):
        return np.ndarray(shape, np.dtype(typestr), self._mapping, offset)

    def close(self):
        self._mapping.close()


class EmulatedClient:
    """A client's side.

    Parameters
    ----------
    device : str
        The device that this client has.
    """

    torch_device = "cpu"

    def __init__(self, device=DEVICE):
        self.device = device

    def attach(self, export):
        if export.kind == "descriptor":
            return EmulatedRegion(export.descriptor, export.size_bytes)
        pid, handle = export.handle.split(":")
        with socket.socket(socket.AF_UNIX) as alive:
            try:
                alive.connect(f"\0emulated-device-{pid}")
                with open(f"/proc/{pid}/fd/{handle}", "r+b") as file:
                    return EmulatedRegion(file.fileno(), export.size_bytes)
            except OSError as error:
                raise DeviceError(f"handle of a process that is gone: {error}") from error


def open_holder():
    kind = os.environ.get(KIND_VARIABLE, "descriptors")
    if kind == "broken":
        raise DeviceError("this device is broken")
    return EmulatedHolder(kind, int(os.environ.get(SIZE_VARIABLE, 1 << 30)))
