"""Encode and decode tensors, as JSON and as the raw bytes of the binary tensor extension.

Each tensor of the model gets one codec, made ahead. It holds everything that would otherwise be
looked up again for each request.

numpy has no BF16: a model takes and returns it as float32, which holds each of its values exactly.
That computes at numpy's full speed, and `torch.from_numpy(x).bfloat16()` loses nothing; torch takes
no array of `ml_dtypes.bfloat16`, which `tritonclient` gives its users.
"""

import math
import reprlib
import struct
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.errors import BadRequestError, TooLargeError
from deployments.models.base import TensorSpec

#: By kind of numpy dtype: the Python types that JSON values may parse to, and their name.
_JSON_TYPES = {
    "f": (frozenset({float, int}), "numbers"),
    "i": (frozenset({int}), "integers"),
    "u": (frozenset({int}), "integers"),
    "b": (frozenset({bool}), "true and false"),
    "O": (frozenset({str}), "strings"),
}
#: By numpy dtype: the code with which `struct` packs Python numbers, twice as fast as numpy.
_PACKING_CODES = dict(
    zip(
        ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"),
        "efdbhiqBHIQ",
        strict=True,
    )
)
#: So many letters of other words may look like "true" or "false" before those are assumed.
_MAX_LOOKS = 16
#: Whole numbers of more than 64 bits are parsed as floats, and none of those is smaller.
_HUGE = float(2**63)


class TensorCodec:
    """Encodes and decodes one input or output."""

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.dtype = spec.numpy_dtype
        self.row_shape = list(spec.shape)
        self._is_variable = spec.is_variable
        self._json_types, self._json_types_name = _JSON_TYPES[self.dtype.kind]
        self._packing_code = _PACKING_CODES.get(self.dtype.str[1:])
        #: Bytes of one value among the raw ones.
        self.item_bytes = self.dtype.itemsize
        self._must_be_finite = self.dtype.kind == "f" and not spec.allow_nan

    def from_json(
        self, data: object, shape: list[int], booleans_possible: bool = True
    ) -> NDArray[Any]:
        """Decode a tensor's "data", flat or nested, to `shape`, which begins with the rows.

        `booleans_possible`: it may contain true or false, which pass for numbers in Python.
        """
        if not isinstance(data, list):
            raise self.bad_request('"data" must be a list')
        flat = _flatten(data, shape) if data and type(data[0]) is list else data
        if flat is None or len(flat) != math.prod(shape):
            raise self.wrong_nesting(shape)
        return self.decode(flat, booleans_possible).reshape(shape)

    def decode(self, flat: list[Any], booleans_possible: bool = True) -> NDArray[Any]:
        """Decode values that were parsed from JSON, if they have the right type and range."""
        if not booleans_possible and self._packing_code is not None:
            array = self._pack(flat, self._packing_code)
            if array is not None:
                return array
        types = list(map(type, flat))
        # Nearly always all values have one type, and counting it is faster than building a set.
        uniform = types[0] in self._json_types and types.count(types[0]) == len(types)
        if not uniform and not self._json_types.issuperset(types):
            if self.dtype.kind in "iu" and any(map(_is_huge, flat)):
                raise self._out_of_range()
            raise self.bad_request(f'"data" must contain only {self._json_types_name}')
        return self._to_array(flat)

    def _pack(self, flat: list[Any], code: str) -> NDArray[Any] | None:
        """Return numbers as an array; None if some are no numbers or out of range.

        JSON has neither NaN nor infinity, and packing makes none.
        """
        try:
            packed = _packer(code, len(flat)).pack(*flat)
        except (struct.error, OverflowError):
            return None
        return np.frombuffer(bytearray(packed), self.dtype)  # so that it can be written to

    def _to_array(self, flat: list[Any]) -> NDArray[Any]:
        try:
            with np.errstate(over="ignore"):
                array = np.fromiter(flat, self.dtype, len(flat))
        except OverflowError:
            raise self._out_of_range() from None
        return self._checked(array)

    def _out_of_range(self) -> BadRequestError:
        limits = np.iinfo(self.dtype)
        return self.bad_request(
            f"{self.spec.datatype} values must be from {limits.min} to {limits.max}"
        )

    def from_binary(
        self, raw: memoryview, offset: int, size: object, shape: list[int]
    ) -> NDArray[Any]:
        """View `size` bytes of `raw` from `offset` as an array of `shape`, without a copy.

        `raw` is the body after its JSON part, `size` the value of "binary_data_size".
        `BadRequestError` if it does not fit the shape or the body, or a value is not allowed.
        """
        count = math.prod(shape)
        wanted = count * self.item_bytes
        if type(size) is not int or size != wanted:
            raise self.bad_request(
                f"binary_data_size must be {wanted} for shape {shape}, not {reprlib.repr(size)}"
            )
        if offset + wanted > len(raw):
            raise self.bad_request("the body ends before the end of this tensor")
        return self._checked(self._view(raw, count, offset)).reshape(shape)

    def _view(self, raw: memoryview, count: int, offset: int) -> NDArray[Any]:
        return np.frombuffer(raw, self.dtype, count, offset)

    def _checked(self, array: NDArray[Any]) -> NDArray[Any]:
        if self._must_be_finite and not np.isfinite(array).all():
            raise self.bad_request("NaN and infinity are not allowed")
        return array

    def to_json(self, array: NDArray[Any]) -> Any:
        """Return a flat object that `orjson` can write as the tensor's "data"."""
        return array.ravel()

    def to_binary(self, array: NDArray[Any]) -> memoryview | bytes:
        """Return the raw bytes of a contiguous array; as a view, unless it is empty."""
        return array.data.cast("B") if array.size else b""

    def wrong_nesting(self, shape: list[int]) -> BadRequestError:
        return self.bad_request(
            f'"data" must be nested as the shape {shape}, or be a flat list of '
            f"{math.prod(shape)} values"
        )

    def accepts(self, row_shape: list[int]) -> bool:
        if self._is_variable:
            return self.spec.fits(row_shape)
        return row_shape == self.row_shape

    def wrong_shape(self, shape: object) -> BadRequestError:
        longest = f" of at most {self.spec.max_dim} each" if self.spec.is_variable else ""
        return self.bad_request(
            f"shape must be {[-1, *self.row_shape]} with at least one row{longest}, "
            f"not {reprlib.repr(shape)}"
        )

    def bad_request(self, problem: str) -> BadRequestError:
        return BadRequestError(f"input {self.spec.name!r}: {problem}")


def booleans_possible(text: bytes) -> bool:
    """Return whether JSON may contain true or false; quick, and never wrong if it says no."""
    for letter, word in ((b"u", b"true"), (b"l", b"false")):
        at = text.find(letter)
        for _ in range(_MAX_LOOKS):
            if at < 0:
                break
            if text.startswith(word, at - 2):
                return True
            at = text.find(letter, at + 1)
        else:
            return True
    return False


def _is_huge(value: object) -> bool:
    """Return whether a value was a whole number too large for the JSON parser to keep as one."""
    return type(value) is float and abs(value) >= _HUGE and value.is_integer()


@lru_cache(maxsize=1024)
def _packer(code: str, count: int) -> struct.Struct:
    return struct.Struct(f"<{count}{code}")


def _flatten(data: list[Any], shape: list[int]) -> list[Any] | None:
    """Return the values of `data` in row-major order, or None if it is not nested as `shape`.

    All lengths are checked before any array is made. numpy would pad ragged types or lengths to
    the longest, so that a small body could exhaust memory.
    """
    if len(data) != shape[0]:
        return None
    for length in shape[1:]:
        if len(data) == 1:
            (data,) = data
            if type(data) is not list or len(data) != length:
                return None
            continue
        if set(map(type, data)) != {list} or set(map(len, data)) != {length}:
            return None
        data = list(chain.from_iterable(data))
    return data


_LENGTH = struct.Struct("<I")
#: The most texts among the raw bytes of a request: taking them apart blocks the event loop, for
#: some 15 ms.
MAX_TEXTS = 1 << 15


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
        """Copy the elements out of `size` bytes of `raw` from `offset`, which they must fill."""
        count = math.prod(shape)
        if type(size) is not int or size < count * _LENGTH.size:
            raise self.bad_request(
                f"binary_data_size must be at least {count * _LENGTH.size} for {count} elements, "
                f"not {reprlib.repr(size)}"
            )
        end = offset + size
        if end > len(raw):
            raise self.bad_request("the body ends before the end of this tensor")
        if count > MAX_TEXTS:
            raise TooLargeError(
                f"input {self.spec.name!r}: at most {MAX_TEXTS} elements of type BYTES fit into a "
                f"request, not {count}"
            )
        elements: list[bytes] = []
        content, offset = bytes(raw[offset:end]), 0
        try:
            for _ in range(count):
                (length,) = _LENGTH.unpack_from(content, offset)
                start = offset + _LENGTH.size
                offset = start + length
                elements.append(content[start:offset])
            fits = offset <= len(content)
        except struct.error:
            fits = False
        if not fits:
            raise self.bad_request("an element extends beyond binary_data_size")
        if offset != len(content):
            raise self.bad_request(
                f"binary_data_size has {len(content) - offset} bytes more than its {count} elements"
            )
        return _object_array(elements).reshape(shape)

    def to_json(self, array: NDArray[Any]) -> Any:
        """Return the elements as a flat list of strings, if they are valid UTF-8."""
        try:
            return [element.decode() for element in array.ravel()]
        except UnicodeDecodeError:
            raise BadRequestError(
                f"output {self.spec.name!r} is not valid UTF-8; request it with binary_data true"
            ) from None

    def to_binary(self, array: NDArray[Any]) -> memoryview | bytes:
        return b"".join(
            part
            for element in array.ravel()
            for part in (len(element).to_bytes(_LENGTH.size, "little"), element)
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
        """Decode and round values that were parsed from JSON."""
        return self._checked(_to_float32(_to_bfloat16(super().decode(flat, booleans_possible))))

    def _view(self, raw: memoryview, count: int, offset: int) -> NDArray[Any]:
        return _to_float32(np.frombuffer(raw, "<u2", count, offset))

    def to_json(self, array: NDArray[Any]) -> Any:
        """Return the rounded values as a flat array of float32."""
        return _to_float32(_to_bfloat16(array.ravel()))

    def to_binary(self, array: NDArray[Any]) -> memoryview | bytes:
        return _to_bfloat16(array).tobytes()


def codec_of(spec: TensorSpec) -> TensorCodec:
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
