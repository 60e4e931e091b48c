"""The parameters of a request: which are valid, whether in a header or in the body."""

import reprlib
from collections.abc import Mapping
from typing import Any, TypeGuard

from deployments.errors import BadRequestError

#: The longest deadline that a request may set: one day.
MAX_TIMEOUT_MS = 86_400_000
MAX_TIMEOUT_US = 1000 * MAX_TIMEOUT_MS
_COLLECTIONS = frozenset({dict, list})


def check_timeout_ms(value: object, where: str) -> float:
    """Return `value` if it is a valid deadline in milliseconds.

    Raises
    ------
    BadRequestError
        It is not a number, not above 0, or more than `MAX_TIMEOUT_MS`.
    """
    if not _is_number(value) or not 0 < value <= MAX_TIMEOUT_MS:
        raise BadRequestError(
            f"{where} must be a number of milliseconds above 0 and at most {MAX_TIMEOUT_MS}, "
            f"not {reprlib.repr(value)}"
        )
    return value


def check_timeout_us(value: object, where: str) -> float | None:
    """Return a deadline in milliseconds that is given in microseconds, as Triton's `timeout` is.

    0 means that there is none, as it does there.

    Raises
    ------
    BadRequestError
        It is not a number, is negative, or is more than `MAX_TIMEOUT_US`.
    """
    if not _is_number(value) or not 0 <= value <= MAX_TIMEOUT_US:
        raise BadRequestError(
            f"{where} must be a number of microseconds from 0 (none) to {MAX_TIMEOUT_US}, "
            f"not {reprlib.repr(value)}"
        )
    return 1e-3 * value if value else None


def check_parameters(parameters: object, where: str) -> dict[str, Any]:
    """Return `parameters` if they are valid. Unknown ones are ignored.

    Parameters
    ----------
    parameters : object
        The value of "parameters", as parsed from JSON.
    where : str
        Whose they are.

    Raises
    ------
    BadRequestError
        They are no object, one is no scalar, or one needs shared memory.
    """
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
    """Return a parameter that is true or false.

    Raises
    ------
    BadRequestError
        It is neither.
    """
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise BadRequestError(f"{name} must be true or false, not {reprlib.repr(value)}")
    return value


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float)
