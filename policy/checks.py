"""Checks of numbers that a user gives."""

import math

from policy.errors import InvalidInputError


def check_above_0(name: str, value: float) -> None:
    _check(name, value, value > 0, "above 0")


def check_at_least(least: int, name: str, value: float) -> None:
    _check(name, value, value >= least, f"at least {least}")


def _check(name: str, value: float, is_within: bool, bound: str) -> None:
    if not is_within or math.isinf(value):
        bound = "finite" if is_within else bound
        raise InvalidInputError(f"{name}: must be {bound}, not {value:g}")
