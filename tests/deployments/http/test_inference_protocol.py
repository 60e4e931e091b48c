import json
import re

import orjson
import pytest

from deployments.errors import BadRequestError, TooLargeError
from deployments.http.inference_protocol import parse_request
from deployments.http.signature import Signature
from deployments.models.base import TensorSpec

SIGNATURE = Signature(
    inputs=(TensorSpec("x", "FP32", (2, 2)), TensorSpec("k", "UINT8", ())),
    outputs=(TensorSpec("y", "FP32", (2, 2)), TensorSpec("n", "INT64", ())),
    max_rows=4,
)


def body(**changes):
    """Return a valid request of two rows, with `changes` to input `x`."""
    x = {"name": "x", "datatype": "FP32", "shape": [2, 2, 2], "data": [0, 1, 2, 3, 4, 5, 6, 7.5]}
    k = {"name": "k", "datatype": "UINT8", "shape": [2], "data": [0, 255]}
    return {"inputs": [{**x, **changes}, k]}


def with_output(**parameters):
    return {**body(), "outputs": [{"name": "y", "parameters": parameters}]}


def parse(content, **more):
    return parse_request(orjson.dumps(content), None, SIGNATURE, **more)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "z"}, "unknown input 'z': the model's inputs are 'x', 'k'"),
        ({"name": "k"}, "datatype must be UINT8, not 'FP32'"),
        ({"datatype": "FP64"}, "datatype must be FP32, not 'FP64'"),
        ({"shape": [2, 4]}, "shape must be [-1, 2, 2]"),
        ({"shape": [0, 2, 2]}, "with at least one row"),
        ({"shape": [True, 2, 2]}, "shape must be [-1, 2, 2]"),
        ({"data": [1, 2, 3]}, "be a flat list of 8 values"),
        ({"data": [[[0, 1, 2], [3]], [[4, 5], [6, 7]]]}, "must be nested as the shape [2, 2, 2]"),
        ({"shape": [1, 2, 2], "data": [[[0, 1, 2, 3]]]}, "must be nested as the shape [1, 2, 2]"),
        ({"data": "1"}, '"data" must be a list'),
        ({"data": [True] * 8}, "must contain only numbers"),
        ({"data": [1e39] * 8}, "NaN and infinity are not allowed"),
        (
            {"parameters": {"binary_data_size": 32}},
            'give either "data" or binary_data_size, not both',
        ),
        (
            {"parameters": {"binary_data_size": 32}, "data": ...},
            "the body ends before the end of this tensor",
        ),
        ({"parameters": {"binary_data_size": 31}, "data": ...}, "binary_data_size must be 32"),
        ({"parameters": {"shared_memory_region": "r"}}, "shared memory is not supported"),
        ({"parameters": []}, "input 'x': \"parameters\" must be an object"),
    ],
)
def test_names_the_problem_of_an_input(changes, problem):
    content = body(**changes)
    if content["inputs"][0]["data"] is ...:
        del content["inputs"][0]["data"]
    with pytest.raises(BadRequestError, match=re.escape(problem)):
        parse(content)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([], 'must be a JSON object with "inputs"; GET /sojourn/example is a valid request'),
        ({"text": "Hi"}, "must be a list of objects; GET /sojourn/example is a valid request"),
        ({"inputs": [1]}, '"inputs" must be a list of objects'),
        ({"inputs": body()["inputs"][:1]}, "input 'k' is missing"),
        ({"inputs": body()["inputs"][:1] * 2}, "input 'x' is given more than once"),
        (body(shape=[1, 2, 2], data=[0] * 4), "the same number of rows, not 1 and 2"),
        ({**body(), "id": 7}, '"id" must be a string'),
        ({**body(), "parameters": []}, '"parameters" must be an object'),
        ({**body(), "parameters": {"binary_data_output": 1}}, "binary_data_output must be true"),
        ({**body(), "parameters": {"timeout": "9"}}, "timeout must be a number of microseconds"),
        ({**body(), "parameters": {"timeout": -1}}, "from 0 (none) to 86400000000, not -1"),
        ({**body(), "parameters": {"mine": [1]}}, "the request: parameter 'mine' must be a string"),
        (with_output(mine=[]), "output 'y': parameter 'mine' must be a string"),
        ({**body(), "outputs": {}}, '"outputs" must be a list'),
        ({**body(), "parameters": {"priority": 3}}, "or 0 for the default, 2; not 3"),
        ({**body(), "parameters": {"priority": 1.0}}, "or 0 for the default, 2; not 1.0"),
        (with_output(classification=3), "output 'y': classification is not supported"),
        (with_output(binary_data="yes"), "binary_data must be true or false, not 'yes'"),
        ({**body(), "outputs": ["y"]}, '"outputs" must be a list of objects'),
        (
            {**body(), "outputs": [{"name": "z"}]},
            "unknown output 'z': the model's outputs are 'y', 'n'",
        ),
        (
            {**body(), "outputs": [{"name": "y"}, {"name": "y"}]},
            "output 'y' is requested more than once",
        ),
    ],
)
def test_names_the_problem_outside_the_inputs(content, problem):
    with pytest.raises(BadRequestError, match=re.escape(problem)):
        parse(content)


@pytest.mark.parametrize(
    ("raw", "length", "problem"),
    [
        *((raw, None, "not valid JSON") for raw in (b"", b"{", b'{"inputs": NaN}', b"\xff\xfe")),
        (b"[" * 10_000, None, "not valid JSON"),
        (b"{}", -1, "Inference-Header-Content-Length"),
        (b"{}", 3, "Inference-Header-Content-Length"),
        (orjson.dumps(body()) + b"abc", len(orjson.dumps(body())), "3 unexpected bytes follow"),
    ],
)
def test_a_wrong_body_is_a_bad_request(raw, length, problem):
    with pytest.raises(BadRequestError, match=problem):
        parse_request(raw, length, SIGNATURE)


@pytest.mark.parametrize(
    ("value", "datatype"),
    # orjson has no integers of more than 64 bits.
    [(256, "UINT8"), (-1, "UINT8"), (2**63, "INT64"), (2**64, "UINT64"), (10**30, "UINT64")],
)
def test_integers_out_of_range_are_rejected_not_wrapped(value, datatype):
    signature = Signature((TensorSpec("k", datatype),), (), max_rows=1)
    entry = {"name": "k", "datatype": datatype, "shape": [1], "data": [value]}
    with pytest.raises(BadRequestError, match="values must be from"):
        parse_request(json.dumps({"inputs": [entry]}).encode(), None, signature)


def test_too_many_rows_are_rejected_before_their_data_is_read():
    with pytest.raises(TooLargeError, match="at most 4 rows, not 5"):
        parse(body(shape=[5, 2, 2], data=None))


def test_the_defaults_are_all_outputs_no_deadline_and_normal_priority():
    for content in (
        body(),
        {**body(), "outputs": [], "parameters": {"custom": "x", "sequence_id": 7}},
        {**body(), "outputs": None, "parameters": None, "id": None},
        body(parameters={"custom": None}),
        {**body(), "parameters": {"timeout": 0}},
    ):
        request = parse(content)
        assert [output.codec.spec.name for output in request.outputs] == ["y", "n"]
        assert not any(output.binary for output in request.outputs)
        assert (request.deadline_ms, request.priority, request.id) == (None, 0, None)


@pytest.mark.parametrize(
    ("in_body", "in_header", "applies"),
    [
        (None, None, None),
        (20_000, None, 20),
        (None, 30.5, 30.5),
        (20_000, 30.5, 20),
        (40_000, 30.5, 30.5),
        (0, 30.5, 30.5),
    ],
)
def test_the_earlier_of_a_deadline_in_us_and_one_in_ms_applies(in_body, in_header, applies):
    content = {**body(), "parameters": {"timeout": in_body}}
    assert parse(content, timeout_ms=in_header).deadline_ms == applies


def test_the_priority_in_the_header_counts_too():
    content = {**body(), "parameters": {"priority": 2}}
    assert [parse(content, priority=level).priority for level in (0, 1)] == [0, 1]


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("one", [False, True, None])
def test_binary_data_of_an_output_overrides_that_of_the_request(everywhere, one):
    content = with_output(**({} if one is None else {"binary_data": one}))
    content["parameters"] = {"binary_data_output": everywhere}
    (output,) = parse(content).outputs
    assert output.binary == (everywhere if one is None else one)


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": list(range(1_900))},
        {"name": "x" * 100_000},
        {"name": "DEEP"},
        {"datatype": "DEEP"},
        {"shape": "DEEP"},
        {"data": "DEEP"},
    ],
)
def test_an_error_never_repeats_a_large_or_deep_value_in_full(changes):
    content = orjson.dumps(body(**changes)).replace(b'"DEEP"', b"[" * 1000 + b"]" * 1000)
    with pytest.raises(BadRequestError) as caught:
        parse_request(content, None, SIGNATURE)
    assert len(str(caught.value)) < 300
