"""The values in a profile's file, read and checked: tables by batch size, and small objects."""

import math
import reprlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from policy.errors import InvalidInputError

FloatArray = NDArray[np.float64]


def expand_table(name: str, value: object, size: int) -> FloatArray | None:
    """Expand a line or a table to one entry per batch size; None stays None."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        if set(value) != {"per_request", "fixed"}:
            raise InvalidInputError(f"profile: {name} as a line has the keys per_request and fixed")
        slope, fixed = number(name, value["per_request"]), number(name, value["fixed"])
        return fixed + slope * np.arange(1, size + 1, dtype=np.float64)
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != size:
            raise InvalidInputError(
                f"profile: {name} has {len(value)} entries, max_batch_size is {size}"
            )
        return np.array([number(name, entry) for entry in value])
    raise InvalidInputError(
        f"profile: {name} must be a list, or an object with per_request and fixed"
    )


def number(name: str, value: object) -> float:
    if is_number(value) and math.isfinite(value):
        return float(value)
    raise InvalidInputError(f"profile: {name} must hold finite numbers, not {reprlib.repr(value)}")


def check_table(name: str, table: FloatArray) -> None:
    """Check a table by batch size."""
    if table.ndim != 1 or table.size < 1:
        raise InvalidInputError(f"profile: {name} must have an entry for each batch size from 1 on")
    if not np.all(np.isfinite(table)):
        raise InvalidInputError(f"profile: {name} must hold finite numbers")
    if np.any(table < 0):
        raise InvalidInputError(f"profile: {name} must not be negative")
    falls = np.flatnonzero(np.diff(table) < 0)
    if falls.size:
        batch_size = int(falls[0]) + 2
        raise InvalidInputError(
            f"profile: {name} must not decrease with the batch size, but falls at {batch_size}"
        )


def check_keys(part: str, content: object, keys: Collection[str]) -> Mapping[str, Any]:
    """Return the content of a part if it is an object with these keys."""
    if isinstance(content, Mapping) and set(content) == set(keys):
        return content
    raise InvalidInputError(
        f"{part}: must be an object with the keys {', '.join(keys)}, not {content!r}"
    )


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number, and as a float as well: integers have no end."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def check_number(part: str, key: str, value: object) -> None:
    if not is_number(value):
        raise InvalidInputError(f"{part}: {key} must be a number, not {reprlib.repr(value)}")
