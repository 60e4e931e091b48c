"""The data types of safetensors in torch."""

import torch

from deployments.modelstore.errors import UntrustedFileError
from deployments.modelstore.files.safetensors_header import TensorEntry

TORCH_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F4": torch.float4_e2m1fn_x2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}


def typed(content: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    """Return a tensor's bytes, an array of `torch.uint8`, in its data type and shape."""
    if entry.dtype not in TORCH_DTYPES:
        raise UntrustedFileError(f"tensor {entry.name!r}: torch has no data type {entry.dtype}")
    shape = entry.shape
    if entry.dtype == "F4":  # two values share a byte
        shape = (*shape[:-1], shape[-1] // 2)
    return content.view(TORCH_DTYPES[entry.dtype]).view(shape)
