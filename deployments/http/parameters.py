"""Limits of the deadline and the priority of a request, whether in a header or in the body."""

import reprlib

from deployments.errors import BadRequestError

#: The longest deadline that a request may set: one day.
MAX_TIMEOUT_MS = 86_400_000
PRIORITIES = (0, 1)


def check_timeout_ms(value: object, where: str) -> float:
    """Return `value` if it is a valid deadline in milliseconds.

    Raises
    ------
    BadRequestError
        It is not a number, not above 0, or more than `MAX_TIMEOUT_MS`.
    """
    if type(value) not in (int, float) or not 0 < value <= MAX_TIMEOUT_MS:  # type: ignore[operator]
        raise BadRequestError(
            f"{where} must be a number of milliseconds above 0 and at most {MAX_TIMEOUT_MS}, "
            f"not {reprlib.repr(value)}"
        )
    return value  # type: ignore[return-value]


def check_priority(value: object, where: str) -> int:
    """Return `value` if it is a valid priority.

    Raises
    ------
    BadRequestError
        It is not one of `PRIORITIES`.
    """
    if type(value) is not int or value not in PRIORITIES:
        raise BadRequestError(f"{where} must be 0 (normal) or 1 (high), not {reprlib.repr(value)}")
    return value
