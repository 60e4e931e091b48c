"""The data types of safetensors in numpy and torch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from deployments.modelstore.files.safetensors_header import ITEM_BITS

#: Torch data types that numpy lacks.
TORCH_ONLY: Mapping[str, torch.dtype] = {
    "F4": torch.float4_e2m1fn_x2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "BF16": torch.bfloat16,
}


def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "BOOL":
        return np.dtype("bool")
    kind = "u" if name in TORCH_ONLY else name[0].lower()
    return np.dtype(f"{kind}{max(1, ITEM_BITS[name] // 8)}")


#: Numpy's data types by the format's names; whole numbers stand for types that it lacks.
NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = {name: _numpy_dtype(name) for name in ITEM_BITS}


def stored_shape(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a tensor's array: two values of F4 share a byte."""
    return (*shape[:-1], shape[-1] // 2) if dtype == "F4" else shape
