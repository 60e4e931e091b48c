"""The header of a safetensors file: which tensors it has, and where their bytes are.

The format is 8 bytes with the length of the header (little-endian), the header in JSON, and the
tensors' bytes, in order, without gaps. The library refuses any other file.
"""

import os
from operator import itemgetter
from typing import NamedTuple

import orjson
from safetensors import SafetensorError, safe_open

from deployments.modelstore.errors import UntrustedFileError

LENGTH_BYTES = 8


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

    Raises `UntrustedFileError` if any of the file is not of this format.
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
    """Return the tensors in the header of a file that `read_entries` has accepted."""
    described = orjson.loads(header[LENGTH_BYTES:])
    described.pop("__metadata__", None)
    entries = []
    for name, tensor in described.items():
        begin, end = (len(header) + offset for offset in tensor["data_offsets"])
        entries.append(TensorEntry(name, tensor["dtype"], tuple(tensor["shape"]), begin, end))
    return sorted(entries, key=itemgetter(3, 4))  # begin, end
