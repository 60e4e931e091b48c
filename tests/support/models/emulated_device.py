"""A device whose memory is host memory: real across processes, so that tests need no GPU.

The holder's process imports this module as its driver. Its environment says how much memory it has,
and whether it is broken.
"""

import mmap
import os
from pathlib import Path

import numpy as np

from deployments.modelstore.device.driver import Export
from deployments.modelstore.errors import DeviceError, OutOfDeviceMemoryError

MODULE = __name__
DEVICE = "emulated"
#: If set, the device cannot be used.
BROKEN_VARIABLE = "EMULATED_DEVICE_BROKEN"
#: Bytes of the device.
SIZE_VARIABLE = "EMULATED_DEVICE_BYTES"
#: A file; the holder that finds it deletes it, and kills itself in the middle of a copy.
DEATH_VARIABLE = "EMULATED_DEVICE_DIES"


class Buffer:
    def __init__(self, size_bytes):
        self.buffer = memoryview(bytearray(size_bytes))


class EmulatedHolder:
    device = DEVICE

    def __init__(self, size_bytes):
        self._free_bytes = size_bytes
        self._sizes = {}

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
        return Export(self._sizes[handle], os.dup(handle))

    def free(self, handle):
        self._free_bytes += self._sizes.pop(handle)
        os.close(handle)


class Mapping(mmap.mmap):
    hold = None


class EmulatedRegion:
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

    def array(self, offset, size_bytes):
        return np.frombuffer(self._mapping, np.uint8, size_bytes, offset)

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
        return EmulatedRegion(export.descriptor, export.size_bytes)


def open_holder():
    if os.environ.get(BROKEN_VARIABLE):
        raise DeviceError("this device is broken")
    return EmulatedHolder(int(os.environ.get(SIZE_VARIABLE, 1 << 30)))
