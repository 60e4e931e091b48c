import copy
import re

import orjson
import pytest

from loadtests.answers import read_cases, write_cases
from policy.errors import InvalidInputError

OUTPUTS = [
    {"name": "label", "datatype": "INT64", "shape": [1], "data": [3]},
    {"name": "probabilities", "datatype": "FP32", "shape": [1, 2], "data": [0.25, 0.75]},
]
CASE = {
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1], "data": [7.0]}],
    "outputs": OUTPUTS,
}


@pytest.fixture
def case(tmp_path):
    path = tmp_path / "cases.jsonl"
    write_cases(path, [CASE])
    (read,) = read_cases(path)
    return read


def answer(outputs=OUTPUTS):
    return orjson.dumps({"model_name": "digits", "outputs": outputs})


def with_output(number, **fields):
    outputs = copy.deepcopy(OUTPUTS)
    outputs[number].update(fields)
    return answer(outputs)


def test_outputs_may_come_in_any_order_and_rounded_otherwise(case):
    for right in (answer(), answer(OUTPUTS[::-1]), with_output(1, data=[0.25004, 0.74996])):
        assert case.fault(right) is None


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (with_output(0, data=[4]), r"label: \[4\] instead of \[3\]"),
        (with_output(1, data=[0.2503, 0.7497]), "probabilities: off by 0.0003"),
        (with_output(1, data=[0.25, None]), "numbers"),
        (with_output(1, data=[0.25]), "2 values"),
        (with_output(1, shape=[2, 1]), "shape"),
        (with_output(0, datatype="INT32"), "datatype"),
        (answer(OUTPUTS[:1]), "probabilities: missing"),
        (answer([]), "not an inference response"),
        (b'{"outputs": [{"name": "label", "data": [NaN]}]}', "not an inference response"),
        (b"[]", "not an inference response"),
    ],
)
def test_wrong_answers(case, wrong, complaint):
    fault = case.fault(wrong)
    assert re.search(complaint, fault)


def test_a_users_cases_need_no_answers(tmp_path):
    path = tmp_path / "cases.jsonl"
    path.write_bytes(orjson.dumps({"inputs": CASE["inputs"]}) + b"\n\n")
    (case,) = read_cases(path)
    assert case.fault(answer()) is None
    assert case.fault(answer([])) is not None


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "no requests"),
        ("{", "line 1"),
        ('{"outputs": []}', "line 1"),
        ("[]", "line 1"),
        ('{"inputs": [1], "outputs": [{"name": "y"}]}', "line 1"),
    ],
)
def test_malformed_cases_are_refused_by_line(tmp_path, content, complaint):
    path = tmp_path / "cases.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=complaint):
        read_cases(path)
