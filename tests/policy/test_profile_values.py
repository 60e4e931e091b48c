"""What the parts of a profile's file may say: which keys, and that numbers are numbers."""

from typing import Any

import pytest

from policy.errors import InvalidInputError
from policy.profile_values import check_keys, check_number


def test_a_part_has_all_its_keys() -> None:
    assert check_keys("part", {"a": 1, "b": 2}, ["a", "b"]) == {"a": 1, "b": 2}


@pytest.mark.parametrize("content", [None, [], "ab", {}, {"a": 1}, {"a": 1, "b": 2, "d": 4}])
def test_other_keys_are_refused_by_name(content: Any) -> None:
    with pytest.raises(
        InvalidInputError, match=r"^part: must be an object with the keys a, b, not"
    ):
        check_keys("part", content, ["a", "b"])


@pytest.mark.parametrize("value", ["1", None, True, [1.0], 10**400])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^part: key must be a number, not "):
        check_number("part", "key", value)


@pytest.mark.parametrize("value", [0, -1.5, float("inf")])
def test_the_range_of_a_number_is_not_its_concern(value: float) -> None:
    check_number("part", "key", value)
