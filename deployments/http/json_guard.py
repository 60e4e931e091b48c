"""Judge a request before its JSON is parsed: its rows, and whether it can be valid at all.

The parser keeps the interpreter's lock. 4 MiB of ``[],`` take 430 ms, because each list is an
object of its own; the same size as numbers takes 12 ms. What a valid request holds is known from
the model's signature, and counting characters takes 1.5 ms per MiB.
"""

import math
import re
from collections.abc import Sequence

from deployments.errors import BadRequestError, TooLargeError
from deployments.models.base import TensorSpec

#: Less text than this is not worth a look.
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
#: As most clients write a shape of one row: told without the pattern, which takes 1 µs.
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
        # What a row of any length may need is no reason for a larger body.
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
    """Check the JSON of requests for a model.

    Parameters
    ----------
    inputs : sequence of TensorSpec
    max_rows : int
        The most rows of a request.
    """

    def __init__(self, inputs: Sequence[TensorSpec], max_rows: int) -> None:
        self._has_texts = any(spec.datatype == "BYTES" for spec in inputs)
        largest = [spec.max_shape for spec in inputs]
        self._max_values = _OTHERS + max_rows * sum(map(math.prod, largest))
        self._max_lists = _OTHERS + max_rows * sum(map(_lists_per_row, largest))
        #: A list of the innermost dimension has at least so many bytes.
        shortest = [max(1, spec.shape[-1]) for spec in inputs if spec.shape]
        self._list_bytes = 2 * min(shortest, default=1)

    def check(self, text: bytes) -> None:
        """Return if `text` may be a valid request.

        Raises
        ------
        BadRequestError, TooLargeError
            It has more lists, objects, strings or values than any valid request of its size.
        """
        if len(text) < CHECKED_FROM_BYTES or self._is_possible(text):
            return
        if self._has_texts and self._is_possible_with_texts(text):
            return
        if text.count(b",") > self._max_values:
            raise TooLargeError(
                f"the body has more values than any valid request: at most {self._max_values}"
            )
        raise BadRequestError(
            "the body has more lists, objects or strings than any valid request of its size"
        )

    def _is_possible_with_texts(self, text: bytes) -> bool:
        """Look at what is outside of strings."""
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
        if text.count(b'"') > 2 * self._max_values:
            return False
        return self._is_possible(b"".join(text.split(b'"')[::2]))

    def _is_possible(self, text: bytes) -> bool:
        if text.count(b",") > self._max_values:
            return False
        # Deleting characters is the fastest way to count several of them.
        marks = len(text) - len(text.translate(None, b'[{"'))
        # Outer lists are at most as many as innermost ones.
        fitting = _OTHERS + 2 * len(text) // self._list_bytes
        return marks <= min(self._max_lists, fitting)


def _lists_per_row(shape: tuple[int, ...]) -> int:
    """Return how many lists a row of nested data has."""
    return sum(math.prod(shape[:depth]) for depth in range(len(shape)))
