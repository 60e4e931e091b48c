"""The Open Inference Protocol's bytes."""

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from deployments.inference_protocol import (
    InferenceRequest,
    Signature,
    encode_response,
    parse_request,
)
from deployments.models.base import TensorSpec
from sojourn.errors import BadRequestError, TooLargeError

SIGNATURE = Signature(
    inputs=(TensorSpec("x", "FP32", (2, 2)), TensorSpec("k", "UINT8", ())),
    outputs=(TensorSpec("y", "FP32", (2, 2)), TensorSpec("n", "INT64", ())),
    max_rows=4,
)


def body(**changes: Any) -> dict[str, Any]:
    """A valid request of two rows, with some of input `x` changed."""
    x = {"name": "x", "datatype": "FP32", "shape": [2, 2, 2], "data": [0, 1, 2, 3, 4, 5, 6, 7.5]}
    k = {"name": "k", "datatype": "UINT8", "shape": [2], "data": [0, 255]}
    return {"inputs": [{**x, **changes}, k]}


def parse(content: Any) -> InferenceRequest:
    return parse_request(orjson.dumps(content), None, SIGNATURE)


def test_flat_and_nested_data_are_the_same() -> None:
    flat = parse(body())
    nested = parse(body(data=[[[0, 1], [2, 3]], [[4, 5], [6, 7.5]]]))
    assert flat.rows == nested.rows == 2
    np.testing.assert_array_equal(flat.inputs["x"], nested.inputs["x"])
    assert flat.inputs["x"].dtype == np.float32
    assert flat.inputs["k"].dtype == np.uint8


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"name": "z"}, "there is no input 'z': the model takes 'x', 'k'"),
        ({"name": "k"}, "datatype must be UINT8, not 'FP32'"),
        ({"name": 7}, "there is no input 7"),
        ({"datatype": "FP64"}, "datatype must be FP32, not 'FP64'"),
        ({"datatype": None}, "datatype must be FP32, not None"),
        ({"shape": [2, 4]}, "shape must be [-1, 2, 2]"),
        ({"shape": [0, 2, 2]}, "with at least one row"),
        ({"shape": [-1, 2, 2]}, "with at least one row"),
        ({"shape": [2.0, 2, 2]}, "shape must be [-1, 2, 2]"),
        ({"shape": [True, 2, 2]}, "shape must be [-1, 2, 2]"),
        ({"shape": []}, "shape must be [-1, 2, 2]"),
        ({"shape": "2"}, "shape must be [-1, 2, 2]"),
        ({"data": [1, 2, 3]}, "be flat with 8 entries"),
        ({"data": [[0, 1, 2, 3], [4, 5, 6, 7]]}, "must have the shape [2, 2, 2]"),
        ({"data": [[[0, 1], [2, 3]], [[4, 5], [6]]]}, "must have the shape [2, 2, 2]"),
        ({"data": "1"}, '"data" must be a list'),
        ({"data": None}, '"data" must be a list'),
        ({"data": ["1", "2", "3", "4", "5", "6", "7", "8"]}, "must hold numbers only"),
        ({"data": [None] * 8}, "must hold numbers only"),
        ({"data": [True] * 8}, "must hold numbers only"),
        ({"data": [1e39] * 8}, "NaN and infinity are not allowed"),
        ({"parameters": {"binary_data_size": 32}}, "exclude each other"),
        ({"parameters": {"binary_data_size": 32}, "data": ...}, "the body ends within its tensor"),
        ({"parameters": {"binary_data_size": 31}, "data": ...}, "binary_data_size must be 32"),
        ({"parameters": {"binary_data_size": -1}, "data": ...}, "binary_data_size must be 32"),
        ({"parameters": {"binary_data_size": 32.0}, "data": ...}, "binary_data_size must be 32"),
        ({"parameters": {"shared_memory_region": "r"}}, "shared memory is not supported"),
        ({"parameters": []}, "input 'x': \"parameters\" must be an object"),
    ],
)
def test_says_what_is_wrong_with_an_input(changes: dict[str, Any], complaint: str) -> None:
    content = body(**changes)
    if content["inputs"][0]["data"] is ...:
        del content["inputs"][0]["data"]
    with pytest.raises(BadRequestError) as caught:
        parse(content)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ([], "must be a JSON object"),
        ({}, '"inputs" must be a list'),
        ({"inputs": {}}, '"inputs" must be a list'),
        ({"inputs": [1]}, '"inputs" must be a list of objects'),
        ({"inputs": body()["inputs"][:1]}, "input 'k' is missing"),
        ({"inputs": body()["inputs"][:1] * 2}, "input 'x' is given twice"),
        ({**body(), "id": 7}, '"id" must be a string'),
        ({**body(), "parameters": 7}, '"parameters" must be an object'),
        ({**body(), "outputs": {"name": "y"}}, '"outputs" must be a list'),
        ({**body(), "outputs": [{"name": "z"}]}, "there is no output 'z'"),
        ({**body(), "outputs": [{"name": "y"}, {"name": "y"}]}, "output 'y' is asked for twice"),
    ],
)
def test_says_what_is_wrong_with_the_rest(content: Any, complaint: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse(content)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("raw", [b"", b"{", b'{"inputs": NaN}', b"\xff\xfe", b"[" * 10_000])
def test_what_is_no_json_is_a_bad_request(raw: bytes) -> None:
    with pytest.raises(BadRequestError, match="not valid JSON"):
        parse_request(raw, None, SIGNATURE)


@pytest.mark.parametrize(("value", "datatype"), [(256, "UINT8"), (-1, "UINT8"), (2**63, "INT64")])
def test_integers_out_of_range_are_refused_not_wrapped(value: int, datatype: str) -> None:
    signature = Signature((TensorSpec("k", datatype),), (), max_rows=1)
    entry = {"name": "k", "datatype": datatype, "shape": [1], "data": [value]}
    with pytest.raises(BadRequestError, match="only"):
        parse_request(orjson.dumps({"inputs": [entry]}), None, signature)


def test_fractions_are_no_integers() -> None:
    signature = Signature((TensorSpec("k", "INT32"),), (), max_rows=1)
    entry = {"name": "k", "datatype": "INT32", "shape": [1], "data": [1.5]}
    with pytest.raises(BadRequestError, match="whole numbers"):
        parse_request(orjson.dumps({"inputs": [entry]}), None, signature)


def test_inputs_must_have_as_many_rows() -> None:
    content = body()
    content["inputs"][1].update(shape=[1], data=[0])
    with pytest.raises(BadRequestError, match="as many rows"):
        parse(content)


def test_too_many_rows_are_refused_before_their_data_is_looked_at() -> None:
    with pytest.raises(TooLargeError, match="4 rows, not 5"):
        parse(body(shape=[5, 2, 2], data=None))


def test_nan_passes_where_the_model_allows_it() -> None:
    signature = Signature((TensorSpec("x", "FP32", (), allow_nan=True),), (), max_rows=1)
    header = orjson.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "datatype": "FP32",
                    "shape": [1],
                    "parameters": {"binary_data_size": 4},
                }
            ]
        }
    )
    request = parse_request(header + np.float32(np.nan).tobytes(), len(header), signature)
    assert np.isnan(request.inputs["x"][0])


@pytest.mark.parametrize("length", [-1, 10_000])
def test_a_header_length_outside_the_body_is_refused(length: int) -> None:
    with pytest.raises(BadRequestError, match="Inference-Header-Content-Length"):
        parse_request(b"{}", length, SIGNATURE)


@given(npst.arrays(np.float32, (3, 2, 2), elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_binary_and_json_carry_the_same_numbers(x: np.ndarray) -> None:
    k = np.arange(3, dtype=np.uint8)
    entries = [
        {"name": "x", "datatype": "FP32", "shape": [3, 2, 2]},
        {"name": "k", "datatype": "UINT8", "shape": [3]},
    ]
    header = orjson.dumps(
        {
            "inputs": [
                {**entry, "parameters": {"binary_data_size": array.nbytes}}
                for entry, array in zip(entries, (x, k), strict=True)
            ]
        }
    )
    binary = parse_request(header + x.tobytes() + k.tobytes(), len(header), SIGNATURE)
    as_json = parse(
        {
            "inputs": [
                {**entry, "data": array.tolist()}
                for entry, array in zip(entries, (x, k), strict=True)
            ]
        }
    )
    for name in ("x", "k"):
        np.testing.assert_array_equal(binary.inputs[name], as_json.inputs[name])
    assert binary.rows == as_json.rows == 3


def test_the_answer_holds_what_was_asked_for_in_the_form_asked_for() -> None:
    content = {
        **body(),
        "id": "mine",
        "outputs": [{"name": "n"}, {"name": "y", "parameters": {"binary_data": True}}],
    }
    y = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    encoded, length = encode_response("m", "1", parse(content), {"y": y, "n": np.array([3, 4])})
    assert length is not None
    assert orjson.loads(encoded[:length]) == {
        "model_name": "m",
        "model_version": "1",
        "id": "mine",
        "outputs": [
            {"name": "n", "datatype": "INT64", "shape": [2], "data": [3, 4]},
            {
                "name": "y",
                "datatype": "FP32",
                "shape": [2, 2, 2],
                "parameters": {"binary_data_size": 32},
            },
        ],
    }
    assert encoded[length:] == y.tobytes()


def test_bytes_after_the_last_tensor_are_refused() -> None:
    content = orjson.dumps(body())
    with pytest.raises(BadRequestError, match="3 bytes follow"):
        parse_request(content + b"abc", len(content), SIGNATURE)


@given(st.binary(max_size=200))
def test_no_bytes_at_all_raise_anything_but_a_request_error(raw: bytes) -> None:
    with pytest.raises(BadRequestError):
        parse_request(raw, None, SIGNATURE)
