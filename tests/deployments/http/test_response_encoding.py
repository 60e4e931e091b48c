"""Encoding the responses to requests."""

from typing import Any

import numpy as np
import orjson
import pytest

from deployments.errors import BadRequestError, ModelError
from deployments.http.answers import encode_response
from deployments.http.inference_protocol import InferenceRequest, parse_request
from deployments.http.signature import Signature
from deployments.models.base import TensorSpec

SIGNATURE = Signature(
    (TensorSpec("x", "INT8"),),
    (TensorSpec("y", "FP32", (2, 2)), TensorSpec("n", "INT64")),
    max_rows=4,
)


def ask(outputs: list[dict[str, Any]] | None = None, **more: Any) -> InferenceRequest:
    """Return a request of two rows for these outputs."""
    entry = {"name": "x", "datatype": "INT8", "shape": [2], "data": [0, 0]}
    content = {"inputs": [entry], "outputs": outputs, **more}
    return parse_request(orjson.dumps(content), None, SIGNATURE)


def as_binary(name: str) -> dict[str, Any]:
    return {"name": name, "parameters": {"binary_data": True}}


def test_the_response_has_the_requested_outputs_in_the_requested_form() -> None:
    request = ask([{"name": "n"}, as_binary("y")], id="mine")
    y = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    encoded, length = encode_response("m", "1", request, {"y": y, "n": np.array([3, 4])})
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


def test_outputs_that_are_not_contiguous_are_written_in_row_major_order() -> None:
    y = np.arange(8, dtype=np.float32).reshape(2, 2, 2).transpose(0, 2, 1)
    encoded, length = encode_response("m", "1", ask([as_binary("y")]), {"y": y})
    assert np.frombuffer(encoded[length:], np.float32).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("allow_nan", "error"), [(False, ModelError), (True, BadRequestError)])
def test_a_json_output_without_a_number_is_an_error_that_names_it(
    value: float, allow_nan: bool, error: type[Exception]
) -> None:
    outputs = (TensorSpec("fine", "FP32"), TensorSpec("odd", "FP32", allow_nan=allow_nan))
    signature = Signature((), outputs, max_rows=2)
    results = {"fine": np.ones(2, np.float32), "odd": np.array([1, value], np.float32)}
    request = parse_request(b'{"inputs": []}', None, signature)
    with pytest.raises(error, match="output 'odd' has NaN or infinity, which JSON cannot hold"):
        encode_response("m", "1", request, results)
    binary = parse_request(
        b'{"inputs": [], "parameters": {"binary_data_output": true}}', None, signature
    )
    encoded, length = encode_response("m", "1", binary, results)
    assert length is not None
    np.testing.assert_array_equal(np.frombuffer(encoded[length + 8 :], np.float32), results["odd"])


def test_null_in_a_text_is_no_missing_number() -> None:
    signature = Signature((), (TensorSpec("t", "BYTES"),), max_rows=1)
    request = parse_request(b'{"inputs": [], "id": "null"}', None, signature)
    encoded, _ = encode_response("m", "1", request, {"t": np.array([b"null"], object)})
    assert orjson.loads(encoded)["outputs"][0]["data"] == ["null"]


def test_a_number_too_large_for_the_declared_type_is_not_null() -> None:
    signature = Signature((), (TensorSpec("y", "FP16"),), max_rows=1)
    request = parse_request(b'{"inputs": []}', None, signature)
    with (
        pytest.raises(ModelError, match="'y' has NaN or infinity"),
        np.errstate(over="ignore"),
    ):
        encode_response("m", "1", request, {"y": np.array([1e30])})
