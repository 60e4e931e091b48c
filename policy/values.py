"""Values that a user gives, read and checked: numbers, and the tables of a profile's file."""

import math
import reprlib
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from policy.errors import InvalidInputError

FloatArray = NDArray[np.float64]


def expand_table(name: str, value: object, size: int) -> FloatArray:
    """Expand a line or a table to one entry per batch size."""
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
    with suppress(OverflowError):  # integers have no end
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
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


def check_above_0(name: str, value: float) -> None:
    _check(name, value, value > 0, "above 0")


def check_at_least(least: int, name: str, value: float) -> None:
    _check(name, value, value >= least, f"at least {least}")


def _check(name: str, value: float, is_within: bool, bound: str) -> None:
    if not is_within or value == math.inf:
        bound = "finite" if is_within else bound
        raise InvalidInputError(f"{name}: must be {bound}, not {value:g}")
