"""The data types of safetensors in numpy and torch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

#: Numpy's data types by the format's names.
NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype("bool"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "F4": np.dtype("u1"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E4M3FNUZ": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
    "F8_E5M2FNUZ": np.dtype("u1"),
    "F8_E8M0": np.dtype("u1"),
    "U16": np.dtype("u2"),
    "I16": np.dtype("i2"),
    "F16": np.dtype("f2"),
    "BF16": np.dtype("u2"),
    "U32": np.dtype("u4"),
    "I32": np.dtype("i4"),
    "F32": np.dtype("f4"),
    "U64": np.dtype("u8"),
    "I64": np.dtype("i8"),
    "F64": np.dtype("f8"),
    "C64": np.dtype("c8"),
}
#: Torch data types that numpy lacks; above they are whole numbers.
TORCH_ONLY: Mapping[str, torch.dtype] = {
    "F4": torch.float4_e2m1fn_x2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "BF16": torch.bfloat16,
}


def stored_shape(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a tensor's array: two values of F4 share a byte."""
    return (*shape[:-1], shape[-1] // 2) if dtype == "F4" else shape
