"""Parse large JSON piece by piece, so that other requests need not wait for it.

The parser keeps the interpreter's lock, so a thread would not help: 1.6 MB of numbers take 7 ms,
wherever they are parsed. But a list of numbers can be cut at its commas. So the tensors' "data" are
cut out of the text, what is left is parsed as it is, and the data are parsed by the same parser in
pieces of `PIECE_BYTES`. That is no slower than parsing the whole at once.
"""

import math
import re
import secrets
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from deployments.errors import BadRequestError, TooLargeError
from deployments.http.tensors import TensorCodec, booleans_possible

#: Shorter JSON is parsed at once.
IN_TURNS_FROM_BYTES = 64 << 10
#: Text that is parsed in one go: 0.1 to 0.2 ms.
PIECE_BYTES = 16 << 10
#: The most that may be left of a request without texts.
MAX_REST_BYTES = 256 << 10
#: Shorter lists stay where they are.
_CUT_FROM_BYTES = 4 << 10

_KEY = b'"data"'
_LIST_FOLLOWS = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*\[")
_LIST_OF_LISTS = re.compile(rb"\[[ \t\r\n]*\[")
_SPACE = b" \t\r\n"
_OPEN, _CLOSE, _COMMA = b"[],"[0], b"[],"[1], b"[],"[2]
_BRACKETS_TO_SPACES = bytes.maketrans(b"[]", b"  ")
_NO_STRUCTURE = bytes(set(range(256)) - set(b"[],"))
#: Stands for a list in the rest of the text; clients cannot know it.
_PLACEHOLDER = secrets.token_hex(16)


class JsonList(NamedTuple):
    """A list in a JSON text, from its first bracket to its last.

    Attributes
    ----------
    text : bytes
        The whole text.
    start, stop : int
        Where it is in the text; ``text[stop - 1]`` is its last bracket.
    """

    text: bytes
    start: int
    stop: int

    def decode(self, codec: TensorCodec, shape: list[int]) -> Generator[None, None, NDArray[Any]]:
        """Decode the "data" of a tensor, as `TensorCodec.from_json` does, and yield between pieces.

        Parameters
        ----------
        codec : TensorCodec
        shape : list of int
            The whole shape, with the number of rows first.

        Returns
        -------
        ndarray, of the given shape

        Raises
        ------
        BadRequestError
            It is not valid JSON, or has the wrong shape, types or values.
        """
        size = math.prod(shape)
        if self.stop - self.start <= 2 * size:  # a digit and a comma or bracket for each value
            raise codec.wrong_nesting(shape)
        array = np.empty(size, codec.dtype)
        is_nested = _LIST_OF_LISTS.match(self.text, self.start) is not None
        structure = _structure_of(shape) + b"," if is_nested else b""
        filled = structure_at = 0
        for piece in self._pieces():
            if is_nested:
                found = _structure_in(piece)
                # A comma stands between two pieces.
                if found is None or not structure.startswith(found + b",", structure_at):
                    raise codec.wrong_nesting(shape)
                structure_at += len(found) + 1
                piece = piece.translate(_BRACKETS_TO_SPACES)
            values = _values_in(piece)
            stop = filled + len(values)
            if stop > size:
                raise codec.wrong_nesting(shape)
            array[filled:stop] = codec.decode(values, booleans_possible(piece))
            filled = stop
            yield
        if filled < size:
            raise codec.wrong_nesting(shape)
        return array.reshape(shape)

    def _pieces(self) -> Iterator[bytes]:
        """Yield what is between the outer brackets, without the commas between the pieces."""
        at, end = self.start + 1, self.stop - 1
        while True:
            comma = self.text.find(b",", at + PIECE_BYTES, end)
            if comma < 0:
                yield self.text[at:end]
                return
            yield self.text[at:comma]
            at = comma + 1


class CutText(NamedTuple):
    """A JSON text without its long lists.

    Attributes
    ----------
    rest : bytes
        The text, with a placeholder for each list.
    lists : dict of str to JsonList
        The lists, by their placeholders.
    """

    rest: bytes
    lists: dict[str, JsonList]

    def check_rest(self) -> None:
        """Check how much is left to be parsed at once.

        Raises
        ------
        TooLargeError
            It is more than the JSON besides the tensors of any request.
        """
        size = len(self.rest.strip(_SPACE))
        if size > MAX_REST_BYTES:
            raise TooLargeError(
                f"the body has {size} bytes besides its tensors' data: "
                f"at most {MAX_REST_BYTES} are allowed"
            )

    def take(self, data: object) -> JsonList | None:
        """Return the list for which `data` stands, once; None if it stands for none."""
        if type(data) is list and len(data) == 1 and type(data[0]) is str:
            return self.lists.pop(data[0], None)
        return None


def cut_lists(text: bytes, most: int) -> CutText:
    """Cut the long lists under the key "data" out of a JSON text, without parsing it.

    A list ends at the last bracket before the next quotation mark or brace: numbers contain
    neither. If that is not where its "data" ends, then one of the two parts is not valid JSON.

    Parameters
    ----------
    text : bytes
    most : int
        How many such keys to look at.
    """
    parts: list[bytes] = []
    lists: dict[str, JsonList] = {}
    done = at = 0
    for index in range(most):
        key = text.find(_KEY, at)
        if key < 0:
            break
        at = key + len(_KEY)
        found = _LIST_FOLLOWS.match(text, at)
        if found is None:
            continue
        start = found.end() - 1
        stop = _end_of_numbers(text, start)
        if stop - start < _CUT_FROM_BYTES:
            continue
        placeholder = f"{_PLACEHOLDER}{index}"
        lists[placeholder] = JsonList(text, start, stop)
        parts += text[done:start], b'["%b"]' % placeholder.encode()
        done = at = stop
    return CutText(b"".join((*parts, text[done:])), lists)


def _end_of_numbers(text: bytes, start: int) -> int:
    end = text.find(b'"', start)
    if end < 0:
        end = len(text)
    brace = text.find(b"}", start, end)
    return text.rfind(b"]", start, end if brace < 0 else brace) + 1


def _values_in(piece: bytes) -> list[Any]:
    try:
        values: list[Any] = orjson.loads(b"[%b]" % piece)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f'the body is not valid JSON: in "data": {error.msg}') from None
    if not values:
        raise BadRequestError('the body is not valid JSON: in "data": a value is missing')
    return values


def _structure_of(shape: list[int]) -> bytes:
    """Return the brackets and commas of nested data, without the outermost brackets."""
    structure = b""
    for length in reversed(shape):
        structure = b"[%b]" % b",".join([structure] * length)
    return structure[1:-1]


def _structure_in(piece: bytes) -> bytes | None:
    """Return the brackets and commas of a piece; None if a bracket is on a number's wrong side.

    A number stands after an opening bracket, not before one, and the other way round.
    """
    text = piece.translate(None, _SPACE)
    bytes_ = np.frombuffer(text, np.uint8)
    opening = np.flatnonzero(bytes_ == _OPEN)
    closing = np.flatnonzero(bytes_ == _CLOSE)
    before = bytes_[opening[opening > 0] - 1]
    after = bytes_[closing[closing < len(text) - 1] + 1]
    if not ((before == _OPEN) | (before == _COMMA)).all():
        return None
    if not ((after == _CLOSE) | (after == _COMMA)).all():
        return None
    return text.translate(None, _NO_STRUCTURE)
