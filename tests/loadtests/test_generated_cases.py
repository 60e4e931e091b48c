"""Requests made for any model."""

import numpy as np
import pytest

from loadtests.answers import parse_case
from loadtests.cases import random_cases


def spec(datatype, *shape, name="x"):
    return {"name": name, "datatype": datatype, "shape": list(shape)}


@pytest.mark.parametrize(
    ("datatype", "low", "high", "kind"),
    [
        ("FP16", 0, 1, float),
        ("FP32", 0, 1, float),
        ("FP64", 0, 1, float),
        ("INT8", 0, 99, int),
        ("UINT8", 0, 255, int),
        ("INT64", 0, 99, int),
        ("BOOL", False, True, bool),
    ],
)
def test_numbers_are_in_the_range_of_their_type(datatype, low, high, kind):
    (case,) = random_cases([spec(datatype, -1, 30, 8)], 1)
    (tensor,) = case["inputs"]
    assert tensor["shape"] == [1, 30, 8]
    assert len(tensor["data"]) == 240
    assert {type(value) for value in tensor["data"]} == {kind}
    assert low == min(low, *tensor["data"])
    assert high == max(high, *tensor["data"])
    np.testing.assert_array_equal(
        np.array(tensor["data"], np.float16 if datatype == "FP16" else None), tensor["data"]
    )


@pytest.mark.parametrize(("declared", "longest"), [({}, 16), ({"max_dim": 3}, 3)])
def test_dimensions_of_any_length_differ_from_request_to_request(declared, longest):
    inputs = [{**spec("FP32", -1, 2, -1), "parameters": declared}]
    shapes = [case["inputs"][0]["shape"] for case in random_cases(inputs, 200)]
    assert {tuple(shape) for shape in shapes} == {(1, 2, n) for n in range(1, longest + 1)}


def test_bytes_are_words_and_all_requests_differ():
    cases = [*random_cases([spec("BYTES", -1), spec("FP32", -1, name="y")], 50)]
    assert [tensor["name"] for tensor in cases[0]["inputs"]] == ["x", "y"]
    assert all(case["inputs"][0]["data"][0].replace(" ", "").isalpha() for case in cases)
    assert len({parse_case(case).body for case in cases}) == 50
    again = [*random_cases([spec("BYTES", -1), spec("FP32", -1, name="y")], 50)]
    assert cases == again
