"""Limits of deadlines."""

from typing import Any

import pytest

from deployments.errors import BadRequestError
from deployments.http.signature import (
    MAX_TIMEOUT_MS,
    MAX_TIMEOUT_US,
    check_timeout_ms,
    check_timeout_us,
)


@pytest.mark.parametrize("value", [1, 0.5, MAX_TIMEOUT_MS])
def test_a_valid_deadline_is_returned(value: float) -> None:
    assert check_timeout_ms(value, "it") == value


@pytest.mark.parametrize("value", [0, -1, MAX_TIMEOUT_MS + 1, float("nan"), True, "9", None])
def test_an_invalid_deadline_is_rejected(value: Any) -> None:
    with pytest.raises(BadRequestError, match="it must be a number of milliseconds above 0"):
        check_timeout_ms(value, "it")


@pytest.mark.parametrize(
    ("value_us", "value_ms"),
    [(1, 0.001), (100_000, 100), (0.5, 0.0005), (MAX_TIMEOUT_US, MAX_TIMEOUT_MS), (0, None)],
)
def test_tritons_timeout_is_in_microseconds_and_0_is_none(
    value_us: float, value_ms: float | None
) -> None:
    assert check_timeout_us(value_us, "it") == value_ms


@pytest.mark.parametrize("value", [-1, MAX_TIMEOUT_US + 1, float("nan"), True, "9", None])
def test_an_invalid_timeout_is_rejected(value: Any) -> None:
    with pytest.raises(
        BadRequestError, match=r"it must be a number of microseconds from 0 \(none\)"
    ):
        check_timeout_us(value, "it")
