"""The form of requests to a model: tensors, rows, priorities and parameters.

JSON is judged before it is parsed. The parser keeps the interpreter's lock: 4 MiB of ``[],`` take
430 ms, because each list is an object of its own; the same size as numbers takes 12 ms. What a
valid request holds is known from the model's signature, and counting characters takes 1.5 ms per
MiB.
"""

import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeGuard

from numpy.typing import NDArray

from deployments.errors import BadRequestError, TooLargeError
from deployments.http.tensors import TensorCodec, codec_of
from deployments.models.base import TensorSpec

#: The longest deadline that a request may set: one day.
MAX_TIMEOUT_MS = 86_400_000
MAX_TIMEOUT_US = 1000 * MAX_TIMEOUT_MS
_COLLECTIONS = frozenset({dict, list})


def check_timeout_ms(value: object, where: str) -> float:
    """Return a deadline in ms that is above 0 and at most `MAX_TIMEOUT_MS`."""
    if not _is_number(value) or not 0 < value <= MAX_TIMEOUT_MS:
        raise BadRequestError(
            f"{where} must be a number of milliseconds above 0 and at most {MAX_TIMEOUT_MS}, "
            f"not {reprlib.repr(value)}"
        )
    return value


def check_timeout_us(value: object, where: str) -> float | None:
    """Return a deadline in ms that is given in µs, as Triton's is; 0 means none, as there."""
    if not _is_number(value) or not 0 <= value <= MAX_TIMEOUT_US:
        raise BadRequestError(
            f"{where} must be a number of microseconds from 0 (none) to {MAX_TIMEOUT_US}, "
            f"not {reprlib.repr(value)}"
        )
    return 1e-3 * value if value else None


def check_parameters(parameters: object, where: str) -> dict[str, Any]:
    """Return `parameters` if they are scalars without shared memory. Unknown ones are ignored."""
    if not isinstance(parameters, dict):
        raise BadRequestError(f'{where}: "parameters" must be an object')
    for name, value in parameters.items():
        if name.startswith("shared_memory_"):
            raise BadRequestError(
                f"{where}: shared memory is not supported; send the tensor in the body"
            )
        if type(value) in _COLLECTIONS:
            raise BadRequestError(
                f"{where}: parameter {reprlib.repr(name)} must be a string, a number or a boolean"
            )
    return parameters


def read_flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    """Return a parameter that is true or false, else raise a `BadRequestError`."""
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise BadRequestError(f"{name} must be true or false, not {reprlib.repr(value)}")
    return value


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float)


#: The largest number that may stand for a priority.
MAX_PRIORITY_LEVELS = 100
#: The header of a request's priority, in messages.
PRIORITY_HEADER = "the header X-Request-Priority"
#: Levels of priority, unless the config says otherwise.
LEVELS = 2


@dataclass(frozen=True)
class PriorityLevels:
    """The priorities that requests may have, numbered as Triton numbers them.

    Level 1 is the highest, `levels` the lowest, which requests have that name none, or 0.
    """

    levels: int = LEVELS

    def steps(self, first: int, second: int = 0) -> int:
        """Return how many steps above the lowest level the higher of two valid priorities is."""
        return self.levels - (min(first, second) or first or second or self.levels)

    def level(self, steps: int) -> int:
        """Return the level that is so many steps above the lowest; 0 for the lowest itself."""
        return self.levels - steps if steps else 0

    def check(self, value: object, where: str) -> int:
        """Return `value` if it is a whole number from 0 to `levels`."""
        if type(value) is not int or not 0 <= value <= self.levels:
            raise BadRequestError(
                f"{where} must be from 1 (highest) to {self.levels} (lowest), or 0 for the "
                f"default, {self.levels}; not {reprlib.repr(value)}"
            )
        return value


#: Two levels, the lower one by default.
DEFAULT_PRIORITIES = PriorityLevels()


#: Smaller bodies are not checked.
CHECKED_FROM_BYTES = 32 << 10
#: Lists, objects, strings and values besides the tensors: names, shapes, parameters, outputs.
_OTHERS = 2000
#: The most bytes of a number or a boolean as text, with what stands between two of them.
_VALUE_BYTES = 24
_BOOLEAN_BYTES = 8
#: The same per tensor for all else, and for the rest of a request.
_ENTRY_BYTES = 4 << 10
#: The most JSON of a request: parsing it blocks the event loop for some 15 ms.
MAX_JSON_BYTES = 4 << 20
_SHAPE = b'"shape"'
#: As most clients write a shape of one row: found without the pattern, which takes 1 µs.
_ONE_ROW = (b": [1,", b":[1,")
_FIRST_ROWS = re.compile(rb"\s*:\s*\[\s*(\d{1,9})")


def body_limit_bytes(inputs: Sequence[TensorSpec], max_rows: int) -> int:
    """Return how large a body must be allowed to be, so that `max_rows` rows fit as JSON.

    It is at most 4 MiB, but never less than one row of fixed shape needs. Texts have no size of
    their own: a model with an input of type BYTES gets 4 MiB.
    """
    rest_bytes = _ENTRY_BYTES * (1 + len(inputs))
    row_bytes = 0
    for spec in inputs:
        if spec.datatype == "BYTES":
            return MAX_JSON_BYTES
        value_bytes = _BOOLEAN_BYTES if spec.datatype == "BOOL" else _VALUE_BYTES
        size_bytes = value_bytes * math.prod(spec.max_shape)
        # Rows of variable length do not raise the limit above that of all bodies.
        row_bytes += min(size_bytes, MAX_JSON_BYTES) if spec.is_variable else size_bytes
    return max(rest_bytes + row_bytes, min(rest_bytes + max_rows * row_bytes, MAX_JSON_BYTES))


def claimed_rows(body: bytes, max_rows: int, start: int = 0) -> int:
    """Return the rows that the first shape in a body claims, without parsing the body.

    A request that is refused because the replica is full is not parsed, but its rows count. They
    are at least 1 and at most `max_rows`, whatever the body says.
    """
    at = body.find(_SHAPE, start)
    if at < 0 or body.startswith(_ONE_ROW, at + len(_SHAPE)):
        return 1
    found = _FIRST_ROWS.match(body, at + len(_SHAPE))
    return min(max(1, int(found[1])), max_rows) if found else 1


class JsonGuard:
    """Check the JSON of requests for a model, from `CHECKED_FROM_BYTES` on."""

    def __init__(self, inputs: Sequence[TensorSpec], max_rows: int) -> None:
        self._has_texts = any(spec.datatype == "BYTES" for spec in inputs)
        largest = [spec.max_shape for spec in inputs]
        self._max_values = _OTHERS + max_rows * sum(map(math.prod, largest))
        self._max_lists = _OTHERS + max_rows * sum(map(_lists_per_row, largest))

    def check(self, text: bytes) -> None:
        """Return if `text` may be a valid request.

        `BadRequestError` or `TooLargeError` if it has more lists, objects, strings or values than
        any.
        """
        texts = 0
        if self._has_texts:  # brackets in texts are not lists
            text = text.replace(rb"\\", b"").replace(rb"\"", b"")
            texts = text.count(b'"') // 2
            if texts <= self._max_values:
                text = b"".join(text.split(b'"')[::2])
        values = max(texts, text.count(b","))
        if values > self._max_values:
            raise TooLargeError(
                f"the body has more values than any valid request: at most {self._max_values}"
            )
        # Deleting characters is the fastest way to count several of them.
        if len(text) - len(text.translate(None, b'[{"')) > self._max_lists:
            raise BadRequestError(
                "the body has more lists, objects or strings than any valid request"
            )


def _lists_per_row(shape: tuple[int, ...]) -> int:
    return sum(math.prod(shape[:depth]) for depth in range(len(shape)))


Tensors = Mapping[str, NDArray[Any]]


class RequestedOutput(NamedTuple):
    """One output that the client wants, and whether it wants raw bytes instead of JSON."""

    codec: TensorCodec
    binary: bool


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a model."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_rows: int
    priorities: PriorityLevels = DEFAULT_PRIORITIES

    @cached_property
    def json_guard(self) -> JsonGuard:
        """Reject JSON that cannot be a valid request, before it is parsed."""
        return JsonGuard(self.inputs, self.max_rows)

    @cached_property
    def input_codecs(self) -> Mapping[str, TensorCodec]:
        return {spec.name: codec_of(spec) for spec in self.inputs}

    @cached_property
    def output_codecs(self) -> Mapping[str, TensorCodec]:
        return {spec.name: codec_of(spec) for spec in self.outputs}

    @cached_property
    def all_outputs(self) -> Mapping[bool, tuple[RequestedOutput, ...]]:
        """All outputs, as raw bytes (True) or JSON (False); for requests that name none."""
        codecs = self.output_codecs.values()
        return {
            binary: tuple(RequestedOutput(codec, binary) for codec in codecs)
            for binary in (False, True)
        }
