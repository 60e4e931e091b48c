"""The header of a safetensors file: which tensors it has, and where their bytes are.

The format is 8 bytes with the length of the header (little-endian), the header in JSON, and the
tensors' bytes, in order, without gaps. The library refuses any other file.
"""

import math
import os
from operator import itemgetter
from typing import NamedTuple

import orjson
from safetensors import SafetensorError, safe_open

from deployments.modelstore.errors import UntrustedFileError

LENGTH_BYTES = 8
#: The format's data types that torch has, and their names there.
TORCH_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F4": "float4_e2m1fn_x2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}


class TensorEntry(NamedTuple):
    """The place of a tensor: `begin` and `end` are offsets from the start of the file.

    `dtype` is the format's name of the data type.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_entries(descriptor: int) -> list[TensorEntry]:
    """Return the tensors of an open safetensors file, in the order of their bytes.

    Raises `UntrustedFileError` if any of the file is not of this format, or not for torch.
    """
    try:
        with safe_open(f"/proc/self/fd/{descriptor}", "np"):
            pass
    except SafetensorError as error:
        raise UntrustedFileError(f"safetensors: {error}") from error
    data_begin = header_end(os.pread(descriptor, LENGTH_BYTES, 0))
    return entries_of(os.pread(descriptor, data_begin, 0))


def header_end(length: bytes) -> int:
    """Return the offset of the first tensor's bytes, from the first 8 bytes of a file."""
    return LENGTH_BYTES + int.from_bytes(length, "little")


def entries_of(header: bytes) -> list[TensorEntry]:
    """Return the tensors in the header of a file that the library has accepted.

    Raises `UntrustedFileError` where the library takes what the format or torch does not have.
    """
    described = orjson.loads(header[LENGTH_BYTES:])
    described.pop("__metadata__", None)
    entries = []
    for name, tensor in described.items():
        # The library also takes a tensor's fields as an array, and a data type as an object.
        if not isinstance(tensor, dict) or not isinstance(tensor["dtype"], str):
            raise UntrustedFileError(f"safetensors: tensor {name!r} is described in another form")
        dtype, shape = tensor["dtype"], tuple(tensor["shape"])
        whole_bytes = dtype != "F4" or shape[-1] % 2 == 0  # two values of a row share a byte
        # torch multiplies the dimensions of an empty tensor, too, for its strides.
        overflows = math.prod((size or 1 for size in shape), start=1.0) >= 2**63
        if dtype not in TORCH_DTYPES or not whole_bytes or overflows:
            raise UntrustedFileError(
                f"safetensors: torch has no tensor of {dtype} and shape {shape}, as {name!r} is"
            )
        begin, end = (len(header) + offset for offset in tensor["data_offsets"])
        entries.append(TensorEntry(name, dtype, shape, begin, end))
    return sorted(entries, key=itemgetter(3, 4))  # begin, end
