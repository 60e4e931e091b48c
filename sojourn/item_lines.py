"""Items of a pipeline and their results as lines of JSON, for bulk work."""

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson

from deployments.models.base import TensorSpec
from deployments.pipelines.core.errors import StageError
from policy.errors import InvalidInputError


def read_items(
    inputs: Sequence[TensorSpec], lines: Iterable[bytes]
) -> Iterator[dict[str, Any] | InvalidInputError]:
    """Yield the item of each line, or why it has none.

    A line is a JSON object with a value for each input. Bytes are text, or ``{"base64": "..."}``.
    """
    for number, line in enumerate(lines, 1):
        try:
            yield _item(inputs, orjson.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, InvalidInputError) as error:
            yield InvalidInputError(f"line {number}: {error}")


def result_line(result: object) -> bytes:
    """Return a result as JSON; an exception is ``{"error": "..."}``, without its details."""
    if isinstance(result, StageError):
        result = result.for_client()
    content = {"error": str(result)} if isinstance(result, Exception) else result
    return orjson.dumps(content, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)


def _item(inputs: Sequence[TensorSpec], content: Any) -> dict[str, Any]:
    if not isinstance(content, dict) or set(content) != {spec.name for spec in inputs}:
        raise InvalidInputError(
            f"must be an object with {', '.join(repr(spec.name) for spec in inputs)}"
        )
    item = {}
    for spec in inputs:
        value = content[spec.name]
        if spec.datatype == "BYTES" and spec.shape == ():
            encoded = isinstance(value, dict)
            item[spec.name] = base64.b64decode(value["base64"]) if encoded else value.encode()
            continue
        array = np.asarray(value, spec.numpy_dtype)
        if array.shape != spec.shape:
            raise InvalidInputError(
                f"{spec.name}: the shape must be {spec.shape}, not {array.shape}"
            )
        item[spec.name] = array
    return item


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value)
