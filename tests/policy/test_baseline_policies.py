import pytest

from policy.baseline_policies import FORMS, reference_policy
from policy.errors import InvalidInputError
from tests.support.profiles import GOOGLENET_P4


@pytest.mark.parametrize(
    ("name", "sizes", "max_wait_ms"),
    [
        ("work-conserving", [0, 1, 7, 8, 9, 32], None),
        ("static:8", [0, 0, 0, 8, 8, 8], None),
        (" timeout:8:2.5 ", [0, 0, 0, 8, 8, 8], 2.5),
    ],
)
def test_when_the_policies_start_a_batch(name, sizes, max_wait_ms):
    policy = reference_policy(name, GOOGLENET_P4)
    assert [policy.batch_size(n) for n in (0, 1, 7, 8, 9, 40)] == sizes
    assert policy.max_wait_ms == max_wait_ms


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("static:0", "must be 1 to 32"),
        ("timeout:33:1", "must be 1 to 32"),
        ("timeout:8:inf", "wait in ms: must be finite, not inf"),
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
