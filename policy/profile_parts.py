"""The parts of a profile's file that are objects of a few keys: their keys and numbers checked."""

import reprlib
from collections.abc import Collection, Mapping
from typing import Any, TypeGuard

from policy.errors import InvalidInputError


def check_keys(part: str, content: object, keys: Collection[str]) -> Mapping[str, Any]:
    """Return the content of a part if it is an object with these keys.

    Parameters
    ----------
    part : str
        The part's key in the profile, for the error.
    content : object
    keys : collection of str
        The keys that it must have, and no others.

    Raises
    ------
    InvalidInputError
        It is not.
    """
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
    """Check that a value of a part is a number.

    Raises
    ------
    InvalidInputError
        It is not.
    """
    if not is_number(value):
        raise InvalidInputError(f"{part}: {key} must be a number, not {reprlib.repr(value)}")
