"""The functions of CUDA's driver (libcuda) that the device tier uses, by ctypes.

The names are the library's own: cuda.h maps some to a versioned name, such as
``cuMemcpyDtoH_v2``. NVIDIA's Python package would add 12 MB under its own license to every machine,
with or without a GPU.
"""

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_ushort, c_void_p
from typing import Any

from deployments.modelstore.errors import DeviceError, OutOfDeviceMemoryError

LIBRARY = "libcuda.so.1"

# Constants of cuda.h.
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
VIRTUAL_MEMORY_SUPPORTED = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
DESCRIPTORS_SUPPORTED = 103  # CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
ON_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
POSIX_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
READ, READ_WRITE = 1, 3  # CU_MEM_ACCESS_FLAGS_PROT_*
MINIMUM_GRANULARITY = 0  # CU_MEM_ALLOC_GRANULARITY_MINIMUM


class Uuid(ctypes.Structure):
    """CUuuid: identifies a device in all processes."""

    _fields_ = (("bytes", ctypes.c_ubyte * 16),)


class Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _AllocationFlags(ctypes.Structure):
    _fields_ = (
        ("compression_type", ctypes.c_ubyte),
        ("gpu_direct_rdma_capable", ctypes.c_ubyte),
        ("usage", c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int),
        ("requested_handle_types", c_int),
        ("location", Location),
        ("win32_handle_metadata", c_void_p),
        ("flags", _AllocationFlags),
    )


class AccessDescription(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", c_int))


_DEVICE, _POINTER, _ALLOCATION = c_int, c_ulonglong, c_ulonglong
#: The parameters of each function. All return a CUresult, an int.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGet": (POINTER(_DEVICE), c_int),
    "cuDeviceGetUuid_v2": (POINTER(Uuid), _DEVICE),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, _DEVICE),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), _DEVICE),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuCtxSynchronize": (),
    "cuMemGetAllocationGranularity": (POINTER(c_size_t), POINTER(AllocationProperties), c_int),
    "cuMemCreate": (POINTER(_ALLOCATION), c_size_t, POINTER(AllocationProperties), c_ulonglong),
    "cuMemRelease": (_ALLOCATION,),
    "cuMemExportToShareableHandle": (c_void_p, _ALLOCATION, c_int, c_ulonglong),
    "cuMemImportFromShareableHandle": (POINTER(_ALLOCATION), c_void_p, c_int),
    "cuMemAddressReserve": (POINTER(_POINTER), c_size_t, c_size_t, _POINTER, c_ulonglong),
    "cuMemAddressFree": (_POINTER, c_size_t),
    "cuMemMap": (_POINTER, c_size_t, c_size_t, _ALLOCATION, c_ulonglong),
    "cuMemUnmap": (_POINTER, c_size_t),
    "cuMemSetAccess": (_POINTER, c_size_t, POINTER(AccessDescription), c_size_t),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuMemcpyHtoD_v2": (_POINTER, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, _POINTER, c_size_t),
}


class CudaApi:
    """CUDA's driver, initialized; `DeviceError` if there is none, or no GPU."""

    def __init__(self) -> None:
        try:
            library = ctypes.CDLL(LIBRARY)
            for name, parameters in SIGNATURES.items():
                function = getattr(library, name)
                function.argtypes, function.restype = parameters, c_int
        except (OSError, AttributeError) as error:
            raise DeviceError(f"no usable CUDA driver: {error}") from error
        self._library = library
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; `DeviceError`, or `OutOfDeviceMemoryError`, if it failed."""
        result = getattr(self._library, name)(*arguments)
        if result:
            text = c_char_p()
            self._library.cuGetErrorString(result, ctypes.byref(text))
            said = text.value.decode() if text.value else "unknown error"
            kind = OutOfDeviceMemoryError if result == OUT_OF_MEMORY else DeviceError
            raise kind(f"{name}: {said} ({result})")

    def get(self, made: Any, name: str, *arguments: Any) -> Any:
        """Call a function that returns a value through its first parameter `made`; return it."""
        self.call(name, ctypes.byref(made), *arguments)
        return made
