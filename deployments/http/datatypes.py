"""The codecs of datatypes that numpy has not: BYTES and BF16.

A model takes and returns BF16 as float32, which holds each of its values exactly. That needs no
package beyond numpy and computes at its full speed, and `torch.from_numpy(x).bfloat16()` loses
nothing; torch takes no array of `ml_dtypes.bfloat16`, which `tritonclient` gives its users.
"""

import math
import reprlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.errors import BadRequestError
from deployments.http.tensors import TensorCodec
from deployments.models.base import TensorSpec

#: The largest finite value of BF16.
LARGEST_BF16 = (2 - 2**-7) * 2.0**127
_LENGTH_BYTES = 4


class BytesCodec(TensorCodec):
    """Encodes and decodes arrays of byte strings: the datatype BYTES.

    In JSON, an element is a UTF-8 string. In raw bytes, it is its length as a little-endian 32-bit
    integer, followed by its content.
    """

    def _to_array(self, flat: list[Any]) -> NDArray[Any]:
        return _object_array([text.encode() for text in flat])

    def from_binary(
        self, raw: memoryview, offset: int, size: object, shape: list[int]
    ) -> NDArray[Any]:
        """Copy the elements out of the `size` bytes of `raw` from `offset`.

        Raises
        ------
        BadRequestError
            The number of elements does not fit the shape, or they do not fill `size` bytes exactly.
        """
        count = math.prod(shape)
        if type(size) is not int or size < count * _LENGTH_BYTES:
            raise self.bad_request(
                f"binary_data_size must be at least {count * _LENGTH_BYTES} for {count} elements, "
                f"not {reprlib.repr(size)}"
            )
        end = offset + size
        if end > len(raw):
            raise self.bad_request("the body ends before the end of this tensor")
        elements: list[bytes] = []
        for _ in range(count):
            start = offset + _LENGTH_BYTES
            offset = start + int.from_bytes(raw[offset:start], "little")
            if start > end or offset > end:
                raise self.bad_request(f"element {len(elements)} extends beyond binary_data_size")
            elements.append(bytes(raw[start:offset]))
        if offset != end:
            raise self.bad_request(
                f"binary_data_size has {end - offset} bytes more than its {count} elements"
            )
        return _object_array(elements).reshape(shape)

    def to_json(self, array: NDArray[Any]) -> Any:
        """Return the elements as a flat list of strings.

        Raises
        ------
        BadRequestError
            An element is not valid UTF-8, so JSON cannot hold it.
        """
        try:
            return [element.decode() for element in array.ravel()]
        except UnicodeDecodeError:
            raise BadRequestError(
                f"output {self.spec.name!r} is not valid UTF-8; request it with binary_data true"
            ) from None

    def to_binary(self, array: NDArray[Any]) -> memoryview | bytes:
        """Return the elements, each after its length."""
        return b"".join(
            part
            for element in array.ravel()
            for part in (len(element).to_bytes(_LENGTH_BYTES, "little"), element)
        )


class BFloat16Codec(TensorCodec):
    """Encodes and decodes arrays of float32 whose values are those of BF16.

    In JSON, an element is a number. In raw bytes, it is the upper half of a little-endian float32.
    What is between two values of BF16 is rounded to the nearest, in requests and answers alike.
    """

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__(spec)
        self.item_bytes = 2

    def decode(self, flat: list[Any], booleans_possible: bool = True) -> NDArray[Any]:
        """Decode values that were parsed from JSON, as `TensorCodec.decode` does, and round them.

        Raises
        ------
        BadRequestError
            A value is not a number, or is out of range.
        """
        return self._checked(_to_float32(_to_bfloat16(super().decode(flat, booleans_possible))))

    def _view(self, raw: memoryview, count: int, offset: int) -> NDArray[Any]:
        return _to_float32(np.frombuffer(raw, "<u2", count, offset))

    def to_json(self, array: NDArray[Any]) -> Any:
        """Return the rounded values as a flat array of float32."""
        return _to_float32(_to_bfloat16(array.ravel()))

    def to_binary(self, array: NDArray[Any]) -> memoryview | bytes:
        """Return the raw bytes of the rounded values."""
        return _to_bfloat16(array).tobytes()


def codec_of(spec: TensorSpec) -> TensorCodec:
    """Return a codec for the tensor."""
    if spec.datatype == "BYTES":
        return BytesCodec(spec)
    return BFloat16Codec(spec) if spec.datatype == "BF16" else TensorCodec(spec)


def _to_bfloat16(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of the nearest values of BF16, of two equally near ones the even one."""
    bits = array.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    # Rounding could turn a NaN into infinity; a quiet NaN has this bit.
    return np.where(np.isnan(array), (bits >> 16) | 0x40, rounded).astype("<u2")


def _to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _object_array(elements: list[bytes]) -> NDArray[Any]:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array
