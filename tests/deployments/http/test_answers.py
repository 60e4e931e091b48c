import gzip

import numpy as np
import orjson
import pytest

from deployments.errors import BadRequestError
from deployments.http.answers import (
    BINARY,
    COMPRESSED_FROM_BYTES,
    JSON,
    encode_response,
    pays,
)
from deployments.http.inference_protocol import parse_request
from deployments.http.signature import Signature
from deployments.models.base import Model, TensorSpec
from tests.support.http.raw_requests import exchange, post
from tests.support.models.doubles_service import serving

SIGNATURE = Signature(
    (TensorSpec("x", "INT8"),),
    (TensorSpec("y", "FP32", (2, 2)), TensorSpec("n", "INT64")),
    max_rows=4,
)


def ask(outputs=None, **more):
    """Return a request of two rows for these outputs."""
    entry = {"name": "x", "datatype": "INT8", "shape": [2], "data": [0, 0]}
    content = {"inputs": [entry], "outputs": outputs, **more}
    return parse_request(orjson.dumps(content), None, SIGNATURE)


def as_binary(name):
    return {"name": name, "parameters": {"binary_data": True}}


def test_the_response_has_the_requested_outputs_in_the_requested_form_in_row_major_order():
    request = ask([{"name": "n"}, as_binary("y")], id="mine")
    y = np.arange(8, dtype=np.float32).reshape(2, 2, 2).transpose(0, 2, 1)
    encoded, length = encode_response("m", "1", request, {"y": y, "n": np.array([3, 4])})
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
    assert encoded[length:] == y.tobytes()  # which reads it in that order


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_json_output_without_a_number_is_an_error_that_names_it(value):
    outputs = (TensorSpec("fine", "FP32"), TensorSpec("odd", "FP32", allow_nan=True))
    signature = Signature((), outputs, max_rows=2)
    results = {"fine": np.ones(2, np.float32), "odd": np.array([1, value], np.float32)}
    request = parse_request(b'{"inputs": []}', None, signature)
    with pytest.raises(
        BadRequestError, match="output 'odd' has NaN or infinity, which JSON cannot hold"
    ):
        encode_response("m", "1", request, results)
    binary = parse_request(
        b'{"inputs": [], "parameters": {"binary_data_output": true}}', None, signature
    )
    encoded, length = encode_response("m", "1", binary, results)
    np.testing.assert_array_equal(np.frombuffer(encoded[length + 8 :], np.float32), results["odd"])


def test_null_in_a_text_is_no_missing_number():
    signature = Signature((), (TensorSpec("t", "BYTES"),), max_rows=1)
    request = parse_request(b'{"inputs": [], "id": "null"}', None, signature)
    encoded, _ = encode_response("m", "1", request, {"t": np.array([b"null"], object)})
    assert orjson.loads(encoded)["outputs"][0]["data"] == ["null"]


def test_only_large_json_is_compressed():
    large = b" " * COMPRESSED_FROM_BYTES
    assert pays((200, large, [JSON]))
    assert not pays((200, large[1:], [JSON]))
    assert not pays((200, large, [BINARY]))


class Repeats(Model):
    inputs = (TensorSpec("x", "FP32"),)

    def __init__(self, n):
        self.outputs = (TensorSpec("y", "FP32", (n,)),)
        self._n = n

    def load(self, device): ...

    def forward(self, batch):
        return {"y": batch["x"][:, None] + np.arange(self._n, dtype=np.float32)}


REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}


@pytest.fixture
async def ask_large():
    path = "/v2/models/repeats/infer"
    async with serving(Repeats(30_000), name="repeats") as (_, _, port):
        yield lambda *lines, times=1: exchange(
            port, post(REQUEST, *lines, path=path) * times, answers=times
        )


@pytest.mark.parametrize("asgi", [(), ("Connection: close",)], ids=["short way", "asgi"])
async def test_a_large_answer_is_compressed_for_who_asks(ask_large, asgi):
    ((plain_head, plain),) = await ask_large(*asgi)
    ((head, packed),) = await ask_large("Accept-Encoding: br, gzip", *asgi)
    assert b"content-encoding" not in plain_head
    assert b"content-encoding: gzip\r\nvary: accept-encoding\r\n" in head
    assert gzip.decompress(packed) == plain
    assert len(packed) < 0.6 * len(plain)
