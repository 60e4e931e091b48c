"""Levels of priority: Triton's numbers outside, steps above the lowest level inside."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.errors import BadRequestError
from deployments.http.signature import MAX_PRIORITY_LEVELS, PriorityLevels

LEVELS = st.integers(1, MAX_PRIORITY_LEVELS).flatmap(
    lambda levels: st.builds(PriorityLevels, st.just(levels), st.integers(1, levels))
)


@given(LEVELS)
def test_1_is_the_highest_level_and_0_the_default(levels: PriorityLevels) -> None:
    given = [levels.check(value, "it") for value in range(levels.levels + 1)]
    assert levels.steps(given[0]) == levels.steps(levels.default)
    assert [levels.steps(level) for level in given[1:]] == list(range(levels.levels))[::-1]


@given(LEVELS, st.data())
def test_of_two_priorities_the_higher_one_applies(levels: PriorityLevels, data: Any) -> None:
    one, other = data.draw(st.tuples(*[st.integers(0, levels.levels)] * 2))
    named = [levels.steps(level) for level in (one, other) if level]
    assert levels.steps(one, other) == max(named, default=levels.steps(0))


@pytest.mark.parametrize("value", [4, -1, True, 1.0, "1", None])
def test_another_priority_is_rejected(value: Any) -> None:
    allowed = r"it must be from 1 \(highest\) to 3 \(lowest\), or 0 for the default, 2; not "
    with pytest.raises(BadRequestError, match=allowed):
        PriorityLevels(3, 2).check(value, "it")
