import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError


@given(size=st.integers(1, 64), data=st.data())
def test_a_control_limit_starts_all_that_wait_from_there_on(size, data):
    limit = data.draw(st.integers(1, size))
    policy = BatchingPolicy.from_control_limit(limit, size)
    assert policy.control_limit == limit
    assert policy.max_batch_size == size
    for length in range(3 * size):
        assert policy.batch_size(length) == (min(length, size) if length >= limit else 0)


@given(actions=st.lists(st.integers(0, 5), max_size=12))
def test_dropping_the_repeated_end_changes_nothing(actions):
    actions = [min(size, length) for length, size in enumerate([0, *actions, 5, 5, 5, 5, 5, 5])]
    policy = BatchingPolicy.from_actions(actions)
    assert [policy.batch_size(length) for length in range(len(actions))] == actions
    assert policy.batch_size(1000) == actions[-1]
    assert len(policy.actions) < 2 or policy.actions[-1] != policy.actions[-2]


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ((), "the first must be 0"),
        ((1,), "the first must be 0"),
        ((0, 1, 0), "the last at least 1"),
        ((0, 2, 2), "cannot be larger than the queue"),
    ],
)
def test_malformed_actions_are_refused(actions, message):
    with pytest.raises(InvalidInputError, match=message):
        BatchingPolicy(actions)


def test_values_out_of_range_are_refused():
    with pytest.raises(InvalidInputError, match="max_wait_ms: must be at least 0"):
        BatchingPolicy((0, 1), math.nan)
    for limit in (0, 9):
        with pytest.raises(InvalidInputError, match=f"control_limit: must be 1 to 8, not {limit}"):
            BatchingPolicy.from_control_limit(limit, 8)
