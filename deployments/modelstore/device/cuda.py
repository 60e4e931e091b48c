"""NVIDIA GPUs: memory that one process allocates and others attach to.

An allocation of CUDA's virtual memory is passed as a file descriptor, and stays valid until the
last process has unmapped and closed it. Clients map it read-only if the driver can.
"""

import ctypes
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import c_char, c_int, c_size_t, c_ulonglong, c_void_p
from typing import Any

from deployments.modelstore.device import cuda_api as cuda
from deployments.modelstore.device.cuda_api import CudaApi
from deployments.modelstore.device.driver import Export
from deployments.modelstore.errors import DeviceError


class _Gpu:
    """A GPU and this process's primary context on it, which torch also uses."""

    def __init__(self, api: CudaApi, ordinal: int) -> None:
        self.api = api
        self.ordinal: int = api.get(c_int(), "cuDeviceGet", ordinal).value
        uuid = api.get(cuda.Uuid(), "cuDeviceGetUuid_v2", self.ordinal)
        self.uuid = bytes(uuid.bytes).hex()
        self._context = api.get(c_void_p(), "cuDevicePrimaryCtxRetain", self.ordinal)
        self.location = cuda.Location(cuda.ON_DEVICE, self.ordinal)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the context current in this thread."""
        self.api.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self.api.get(c_void_p(), "cuCtxPopCurrent_v2")

    def supports(self, attribute: int) -> bool:
        return bool(self.api.get(c_int(), "cuDeviceGetAttribute", attribute, self.ordinal).value)

    def map(self, allocation: int, size_bytes: int, access: int) -> int:
        """Map an allocation of virtual memory into this process."""
        api = self.api
        pointer: int = api.get(c_ulonglong(), "cuMemAddressReserve", size_bytes, 0, 0, 0).value
        try:
            api.call("cuMemMap", pointer, size_bytes, 0, allocation, 0)
            try:
                described = cuda.AccessDescription(self.location, access)
                api.call("cuMemSetAccess", pointer, size_bytes, ctypes.byref(described), 1)
            except DeviceError:
                api.call("cuMemUnmap", pointer, size_bytes)
                raise
        except DeviceError:
            api.call("cuMemAddressFree", pointer, size_bytes)
            raise
        return pointer

    def unmap(self, pointer: int, size_bytes: int) -> None:
        self.api.call("cuMemUnmap", pointer, size_bytes)
        self.api.call("cuMemAddressFree", pointer, size_bytes)


class _PinnedBuffer:
    """Page-locked memory, which the GPU reads directly."""

    def __init__(self, gpu: _Gpu, size_bytes: int) -> None:
        with gpu.current():
            self.address: int = gpu.api.get(c_void_p(), "cuMemHostAlloc", size_bytes, 0).value
        self.buffer = memoryview((c_char * size_bytes).from_address(self.address)).cast("B")


class _Holder:
    """The holder's side: a `deployments.modelstore.device.driver.HolderDriver`."""

    def __init__(self, gpu: _Gpu) -> None:
        self._gpu = gpu
        self.device = gpu.uuid
        if not (
            gpu.supports(cuda.VIRTUAL_MEMORY_SUPPORTED) and gpu.supports(cuda.DESCRIPTORS_SUPPORTED)
        ):
            raise DeviceError("the GPU's driver cannot share virtual memory by file descriptors")
        self._properties = cuda.AllocationProperties(
            type=cuda.PINNED, requested_handle_types=cuda.POSIX_DESCRIPTOR, location=gpu.location
        )
        self._page_bytes: int = gpu.api.get(
            c_size_t(),
            "cuMemGetAllocationGranularity",
            ctypes.byref(self._properties),
            cuda.MINIMUM_GRANULARITY,
        ).value
        # The allocation and its size, by pointer.
        self._allocations: dict[int, tuple[int, int]] = {}

    def allocate(self, size_bytes: int) -> int:
        whole_bytes = -(-size_bytes // self._page_bytes) * self._page_bytes
        api = self._gpu.api
        with self._gpu.current():
            allocation: int = api.get(
                c_ulonglong(), "cuMemCreate", whole_bytes, ctypes.byref(self._properties), 0
            ).value
            try:
                pointer = self._gpu.map(allocation, whole_bytes, cuda.READ_WRITE)
            except DeviceError:
                api.call("cuMemRelease", allocation)
                raise
            self._allocations[pointer] = (allocation, whole_bytes)
            return pointer

    def staging(self, size_bytes: int) -> _PinnedBuffer:
        return _PinnedBuffer(self._gpu, size_bytes)

    def write(self, handle: int, offset: int, staging: _PinnedBuffer, size_bytes: int) -> None:
        with self._gpu.current():  # from page-locked memory, the call returns when done
            self._gpu.api.call("cuMemcpyHtoD_v2", handle + offset, staging.address, size_bytes)

    def export(self, handle: int) -> Export:
        allocation, size_bytes = self._allocations[handle]
        with self._gpu.current():
            descriptor = self._gpu.api.get(
                c_int(-1), "cuMemExportToShareableHandle", allocation, cuda.POSIX_DESCRIPTOR, 0
            )
            return Export(size_bytes, descriptor.value)

    def free(self, handle: int) -> None:
        allocation, size_bytes = self._allocations.pop(handle)
        with self._gpu.current():
            self._gpu.unmap(handle, size_bytes)
            self._gpu.api.call("cuMemRelease", allocation)


class _Array:
    """Bytes of a region for torch: the CUDA array interface, version 3."""

    def __init__(self, region: "_Region", pointer: int, size_bytes: int) -> None:
        self._region = region
        # Torch has no read-only memory, so False; a write fails on the GPU.
        self.__cuda_array_interface__ = {
            "data": (pointer, False),
            "shape": (size_bytes,),
            "typestr": "|u1",
            "version": 3,
        }


class _Region:
    """Memory of another process that this one is attached to."""

    def __init__(self, gpu: _Gpu, pointer: int, size_bytes: int) -> None:
        self._gpu, self._pointer = gpu, pointer
        self.hold: object = None
        self.close = weakref.finalize(self, _detach, gpu, pointer, size_bytes)
        self.close.atexit = False  # the process may have left the driver already

    def read(self, offset: int, size_bytes: int) -> bytes:
        content = ctypes.create_string_buffer(size_bytes)
        with self._gpu.current():
            self._gpu.api.call("cuMemcpyDtoH_v2", content, self._pointer + offset, size_bytes)
        return content.raw

    def array(self, offset: int, size_bytes: int) -> Any:
        return _Array(self, self._pointer + offset, size_bytes)


def _detach(gpu: _Gpu, pointer: int, size_bytes: int) -> None:
    with suppress(DeviceError), gpu.current():
        # Running kernels may still read it.
        gpu.api.call("cuCtxSynchronize")
        gpu.unmap(pointer, size_bytes)


class CudaClient:
    """A client's side of a GPU, which has the number `ordinal` in this process."""

    def __init__(self, ordinal: int) -> None:
        self._gpu = _Gpu(CudaApi(), ordinal)
        self.device = self._gpu.uuid
        self.torch_device = f"cuda:{ordinal}"

    def attach(self, export: Export) -> _Region:
        gpu, api = self._gpu, self._gpu.api
        with gpu.current():
            allocation: int = api.get(
                c_ulonglong(),
                "cuMemImportFromShareableHandle",
                export.descriptor,
                cuda.POSIX_DESCRIPTOR,
            ).value
            try:
                try:
                    pointer = gpu.map(allocation, export.size_bytes, cuda.READ)
                except DeviceError:  # not every driver protects memory on the device
                    pointer = gpu.map(allocation, export.size_bytes, cuda.READ_WRITE)
            finally:
                # The mapping keeps the memory alive.
                api.call("cuMemRelease", allocation)
            return _Region(gpu, pointer, export.size_bytes)


def open_holder() -> _Holder:
    """Open the first GPU that this process sees, to hold memory on it."""
    return _Holder(_Gpu(CudaApi(), 0))
