"""The policies that others are measured against, by name."""

import pytest

from policy.baseline_policies import FORMS, reference_policy
from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.response_time.evaluation import evaluate
from tests.support.profiles import GOOGLENET_P4


def test_work_conserving_starts_all_that_wait():
    policy = reference_policy("work-conserving", GOOGLENET_P4)
    assert [policy.batch_size(n) for n in (0, 1, 5, 32, 40)] == [0, 1, 5, 32, 32]
    assert policy.max_wait_ms is None


def test_static_starts_batches_of_one_size():
    policy = reference_policy("static:8", GOOGLENET_P4)
    assert [policy.batch_size(n) for n in (1, 7, 8, 9, 40)] == [0, 0, 8, 8, 8]
    evaluation = evaluate(GOOGLENET_P4, policy, 600.0)
    assert evaluation.batch_size_probabilities[8] == pytest.approx(1)


def test_timeout_starts_full_batches_or_after_the_wait():
    policy = reference_policy("timeout:8:5", GOOGLENET_P4)
    assert policy == BatchingPolicy((0,) * 8 + (8,), 5.0)
    assert reference_policy(" timeout:8:2.5 ", GOOGLENET_P4).max_wait_ms == 2.5


@pytest.mark.parametrize(
    "name", ["", "greedy", "static", "static:8:5", "static:x", "timeout:8", "timeout:8:soon"]
)
def test_the_error_for_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(InvalidInputError) as error:
        reference_policy(name, GOOGLENET_P4)
    assert all(form in str(error.value) for form in FORMS)


@pytest.mark.parametrize("name", ["static:0", "static:33", "timeout:33:1", "static:-1"])
def test_a_batch_size_outside_the_profile_is_refused(name):
    with pytest.raises(InvalidInputError, match="must be 1 to 32"):
        reference_policy(name, GOOGLENET_P4)


@pytest.mark.parametrize("wait", ["-1", "nan", "inf"])
def test_a_wait_out_of_range_is_refused(wait):
    with pytest.raises(InvalidInputError, match="at least 0 ms and finite"):
        reference_policy(f"timeout:8:{wait}", GOOGLENET_P4)
