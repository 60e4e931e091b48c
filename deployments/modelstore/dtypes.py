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
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
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
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "BF16": torch.bfloat16,
}
