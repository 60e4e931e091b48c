"""Tensors on the wire: as JSON, and as the raw bytes of the binary tensor extension.

A codec is made once per tensor of the model, and holds all that need not be looked up again for
each request.
"""

import math
import reprlib
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.errors import BadRequestError
from deployments.models.base import TensorSpec

#: What JSON may hold, by the kind of the array: the types that it is parsed to, and their name.
_JSON_TYPES = {
    "f": (frozenset({float, int}), "numbers"),
    "i": (frozenset({int}), "whole numbers"),
    "u": (frozenset({int}), "whole numbers"),
    "b": (frozenset({bool}), "true and false"),
    "O": (frozenset({str}), "strings"),
}
_LENGTH_BYTES = 4


class TensorCodec:
    """Reads and writes the arrays of one input or output.

    Parameters
    ----------
    spec : TensorSpec
        Which; of any datatype but BYTES.
    """

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.dtype = spec.numpy_dtype
        self.row_shape = list(spec.shape)
        self.row_size = math.prod(spec.shape)
        self._types, self._types_name = _JSON_TYPES[self.dtype.kind]
        self._may_be_infinite = self.dtype.kind == "f" and not spec.allow_nan

    def from_json(self, data: object, shape: list[int]) -> NDArray[Any]:
        """Make the array of a tensor's "data", which may be flat or nested.

        Raises
        ------
        BadRequestError
            It is no list, or its shape, types or values are not the tensor's.
        """
        if not isinstance(data, list):
            raise self.refusal('"data" must be a list')
        flat = _flattened(data, shape) if data and type(data[0]) is list else data
        if flat is None or len(flat) != shape[0] * self.row_size:
            raise self.refusal(
                f'"data" must have the shape {shape} or be flat with '
                f"{shape[0] * self.row_size} entries"
            )
        types = list(map(type, flat))
        # Nearly always all are of one type, and counting it is quicker than making a set.
        uniform = types[0] in self._types and types.count(types[0]) == len(types)
        if not uniform and not self._types.issuperset(types):
            raise self.refusal(f'"data" must hold {self._types_name} only')
        return self._array(flat, shape)

    def _array(self, flat: list[Any], shape: list[int]) -> NDArray[Any]:
        try:
            with np.errstate(over="ignore"):
                array = np.fromiter(flat, self.dtype, len(flat))
        except OverflowError:
            limits = np.iinfo(self.dtype)
            raise self.refusal(
                f"{self.spec.datatype} holds {limits.min} to {limits.max} only"
            ) from None
        return self._checked(array, shape)

    def from_binary(
        self, raw: memoryview, offset: int, size: object, shape: list[int]
    ) -> NDArray[Any]:
        """View the array in the `size` bytes of `raw` from `offset` on.

        Raises
        ------
        BadRequestError
            The size does not fit the shape or the body, or a value is not allowed.
        """
        count = shape[0] * self.row_size
        wanted = count * self.dtype.itemsize
        if type(size) is not int or size != wanted:
            raise self.refusal(
                f"binary_data_size must be {wanted} for shape {shape}, not {reprlib.repr(size)}"
            )
        if offset + wanted > len(raw):
            raise self.refusal("the body ends within its tensor")
        return self._checked(np.frombuffer(raw, self.dtype, count, offset), shape)

    def _checked(self, array: NDArray[Any], shape: list[int]) -> NDArray[Any]:
        if self._may_be_infinite and not np.isfinite(array).all():
            raise self.refusal("NaN and infinity are not allowed")
        return array.reshape(shape)

    def to_json(self, array: NDArray[Any]) -> Any:
        """Give what `orjson` writes as the flat "data" of `array`."""
        # JSON knows no half precision.
        return (array.astype(np.float32) if self.dtype == np.float16 else array).ravel()

    def to_binary(self, array: NDArray[Any]) -> memoryview | bytes:
        """Give the raw bytes of `array`, which is contiguous; a view where there can be one."""
        return array.data.cast("B") if array.size else b""

    def refusal(self, complaint: str) -> BadRequestError:
        """Make the error that says what is wrong with this tensor."""
        return BadRequestError(f"input {self.spec.name!r}: {complaint}")


class BytesCodec(TensorCodec):
    """Reads and writes arrays of byte strings: the datatype BYTES.

    In JSON an element is a string in UTF-8. As raw bytes it is its length, in four bytes with the
    lowest first, and then itself.
    """

    def _array(self, flat: list[Any], shape: list[int]) -> NDArray[Any]:
        return _object_array([text.encode() for text in flat], shape)

    def from_binary(
        self, raw: memoryview, offset: int, size: object, shape: list[int]
    ) -> NDArray[Any]:
        """Copy the elements out of the `size` bytes of `raw` from `offset` on.

        Raises
        ------
        BadRequestError
            They are not as many as the shape says, or do not fill `size` bytes exactly.
        """
        count = shape[0] * self.row_size
        if type(size) is not int or size < count * _LENGTH_BYTES:
            raise self.refusal(
                f"binary_data_size must be at least {count * _LENGTH_BYTES} for {count} elements, "
                f"not {reprlib.repr(size)}"
            )
        end = offset + size
        if end > len(raw):
            raise self.refusal("the body ends within its tensor")
        elements: list[bytes] = []
        for _ in range(count):
            start = offset + _LENGTH_BYTES
            offset = start + int.from_bytes(raw[offset:start], "little")
            if start > end or offset > end:
                raise self.refusal(f"element {len(elements)} goes beyond binary_data_size")
            elements.append(bytes(raw[start:offset]))
        if offset != end:
            raise self.refusal(f"{end - offset} bytes of binary_data_size follow its last element")
        return _object_array(elements, shape)

    def to_json(self, array: NDArray[Any]) -> Any:
        """Give the elements as text, flat.

        Raises
        ------
        BadRequestError
            One of them is not UTF-8: JSON cannot hold it.
        """
        try:
            return [element.decode() for element in array.ravel()]
        except UnicodeDecodeError:
            raise BadRequestError(
                f"output {self.spec.name!r} is not UTF-8 text: ask for it with binary_data"
            ) from None

    def to_binary(self, array: NDArray[Any]) -> memoryview | bytes:
        """Give each element after its length."""
        return b"".join(
            part
            for element in array.ravel()
            for part in (len(element).to_bytes(_LENGTH_BYTES, "little"), element)
        )


def codec_of(spec: TensorSpec) -> TensorCodec:
    """Make the codec of a tensor."""
    return BytesCodec(spec) if spec.datatype == "BYTES" else TensorCodec(spec)


def _flattened(data: list[Any], shape: list[int]) -> list[Any] | None:
    """Give the entries of `data` in row-major order; None where it is not nested as `shape` says.

    No array is made before all lengths are known to be right: numpy would pad what is ragged in
    types or lengths to the longest, and a small body could take all memory.
    """
    if len(data) != shape[0]:
        return None
    for length in shape[1:]:
        if set(map(type, data)) != {list} or set(map(len, data)) != {length}:
            return None
        data = data[0] if len(data) == 1 else list(chain.from_iterable(data))
    return data


def _object_array(elements: list[bytes], shape: list[int]) -> NDArray[Any]:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)
