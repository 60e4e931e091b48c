"""The policies that others are measured against, by name."""

import pytest

from policy.baseline_policies import FORMS, reference_policy
from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from tests.support.profiles import GOOGLENET_P4


def test_work_conserving_starts_all_that_wait():
    policy = reference_policy("work-conserving", GOOGLENET_P4)
    assert [policy.batch_size(n) for n in (0, 1, 5, 32, 40)] == [0, 1, 5, 32, 32]
    assert policy.max_wait_ms is None


def test_static_starts_batches_of_one_size():
    policy = reference_policy("static:8", GOOGLENET_P4)
    assert [policy.batch_size(n) for n in (1, 7, 8, 9, 40)] == [0, 0, 8, 8, 8]


def test_timeout_starts_full_batches_or_after_the_wait():
    policy = reference_policy("timeout:8:5", GOOGLENET_P4)
    assert policy == BatchingPolicy((0,) * 8 + (8,), 5.0)
    assert reference_policy(" timeout:8:2.5 ", GOOGLENET_P4).max_wait_ms == 2.5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("static:0", "must be 1 to 32"),
        ("timeout:33:1", "must be 1 to 32"),
        ("timeout:8:inf", "at least 0 ms and finite"),
    ],
)
def test_a_batch_size_or_a_wait_out_of_range_is_refused(name, message):
    with pytest.raises(InvalidInputError, match=message):
        reference_policy(name, GOOGLENET_P4)


@pytest.mark.parametrize("name", ["", "greedy", "static:8:5", "timeout:8:soon"])
def test_the_error_for_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(InvalidInputError) as error:
        reference_policy(name, GOOGLENET_P4)
    assert all(form in str(error.value) for form in FORMS)
