"""The header of a safetensors file, checked before any of the file is used.

The format is 8 bytes with the length of the header (little-endian), the header in JSON, and the
tensors' bytes, in order, without gaps. Any other file is refused.
"""

import os
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from deployments.modelstore.errors import UntrustedFileError

#: The format's own limit on the header.
MAX_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8
_MAX_DIMENSIONS = 64
_MAX_ELEMENTS = 1 << 60
_KEYS = {"dtype", "shape", "data_offsets"}

_NAMES = {
    4: "F4",
    8: "BOOL U8 I8 F8_E4M3 F8_E4M3FNUZ F8_E5M2 F8_E5M2FNUZ F8_E8M0",
    16: "U16 I16 F16 BF16",
    32: "U32 I32 F32",
    64: "U64 I64 F64 C64",
}
ITEM_BITS = {name: bits for bits, names in _NAMES.items() for name in names.split()}
"""Bits of one element, by the format's name of the data type, for the types of torch."""


class TensorEntry(NamedTuple):
    """The place of a tensor in the file.

    `dtype` is a key of `ITEM_BITS`. `begin` and `end` are offsets from the start of the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(file: memoryview | bytes, size_bytes: int) -> tuple[TensorEntry, ...]:
    """Return the tensors of a safetensors file, in the order of their bytes.

    Raises `UntrustedFileError` if any of the file is not of this format.
    """
    end = header_end(file[:_LENGTH_BYTES], size_bytes)
    if len(file) < end:
        raise UntrustedFileError(f"safetensors: the header has {end} bytes, {len(file)} are there")
    try:
        header = orjson.loads(file[_LENGTH_BYTES:end])
    except ValueError as error:
        raise UntrustedFileError(f"safetensors: the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise UntrustedFileError("safetensors: the header is not an object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(type(v) is str for v in metadata.values()):
        raise UntrustedFileError("safetensors: __metadata__ must map strings to strings")
    entries = [_entry(name, value, end) for name, value in header.items()]
    entries.sort(key=itemgetter(3, 4))  # begin, end
    position = end
    for entry in entries:
        if entry.begin != position:
            raise UntrustedFileError(
                f"safetensors: tensor {entry.name!r} begins at byte {entry.begin}, not {position}; "
                "tensors must neither overlap nor leave gaps"
            )
        position = entry.end
    if position != size_bytes:
        raise UntrustedFileError(
            f"safetensors: the tensors end at byte {position}, the file at {size_bytes}"
        )
    return tuple(entries)


def header_end(length: memoryview | bytes, size_bytes: int) -> int:
    """Return the offset of the first tensor's bytes, from the first 8 bytes of a file."""
    if len(length) < _LENGTH_BYTES:
        raise UntrustedFileError(f"safetensors: a file of {len(length)} bytes has no header")
    header_bytes = int.from_bytes(length, "little")
    if header_bytes > min(MAX_HEADER_BYTES, size_bytes - _LENGTH_BYTES):
        raise UntrustedFileError(
            f"safetensors: a header of {header_bytes} bytes in a file of {size_bytes}; the limit "
            f"is {MAX_HEADER_BYTES}"
        )
    return _LENGTH_BYTES + header_bytes


def read_entries(descriptor: int, size_bytes: int) -> tuple[TensorEntry, ...]:
    """Return the tensors of an open file, as `read_header` does."""
    end = header_end(os.pread(descriptor, _LENGTH_BYTES, 0), size_bytes)
    return read_header(os.pread(descriptor, end, 0), size_bytes)


def _entry(name: str, value: Any, data_begin: int) -> TensorEntry:
    # A network may have thousands of tensors, and each attaching process reads all of them.
    try:
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        complete = len(value) == len(_KEYS)
    except (TypeError, KeyError):
        complete = False
    if not complete:
        raise UntrustedFileError(
            f"safetensors: tensor {name!r} must have dtype, shape and data_offsets alone"
        )
    if type(dtype) is not str or dtype not in ITEM_BITS:
        raise UntrustedFileError(
            f"safetensors: tensor {name!r}: dtype {dtype!r} is not one of {', '.join(ITEM_BITS)}"
        )
    elements = _elements(shape)
    if elements is None:
        raise UntrustedFileError(f"safetensors: tensor {name!r}: shape {shape!r:.100} is invalid")
    # Sorting the tensors finds negative offsets.
    if (
        type(offsets) is not list
        or len(offsets) != 2
        or type(begin := offsets[0]) is not int
        or type(end := offsets[1]) is not int
    ):
        raise UntrustedFileError(f"safetensors: tensor {name!r}: offsets {offsets!r:.100}")
    if 8 * (end - begin) != elements * ITEM_BITS[dtype] or (dtype == "F4" and shape[-1] % 2):
        raise UntrustedFileError(
            f"safetensors: tensor {name!r}: {end - begin} bytes do not match shape {shape} of "
            f"{dtype}"
        )
    return TensorEntry(name, dtype, tuple(shape), data_begin + begin, data_begin + end)


def _elements(shape: Any) -> int | None:
    if type(shape) is not list or len(shape) > _MAX_DIMENSIONS:
        return None
    elements = 1
    for length in shape:
        if type(length) is not int or length < 0:
            return None
        elements *= length
    return elements if elements <= _MAX_ELEMENTS else None
