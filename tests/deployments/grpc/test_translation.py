import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from deployments.errors import BadRequestError
from deployments.grpc.open_inference_pb2 import ModelInferRequest
from deployments.grpc.translation import grpc_response, http_body

FIELDS = {
    "BOOL": ("?", "bool_contents"),
    "INT8": ("i1", "int_contents"),
    "INT32": ("<i4", "int_contents"),
    "INT64": ("<i8", "int64_contents"),
    "UINT16": ("<u2", "uint_contents"),
    "UINT64": ("<u8", "uint64_contents"),
    "FP32": ("<f4", "fp32_contents"),
    "FP64": ("<f8", "fp64_contents"),
}


def request_of(datatype, shape, **contents):
    request = ModelInferRequest(model_name="m")
    request.inputs.add(name="x", datatype=datatype, shape=shape, contents=contents)
    return request


@given(st.data())
def test_typed_and_raw_contents_become_the_same_request(data):
    datatype = data.draw(st.sampled_from(sorted(FIELDS)))
    dtype, field = FIELDS[datatype]
    values = data.draw(arrays(dtype, st.integers(1, 5)))
    typed = request_of(datatype, [len(values)], **{field: values.tolist()})
    raw = request_of(datatype, [len(values)])
    raw.raw_input_contents.append(values.tobytes())
    assert http_body(typed) == http_body(raw)


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=4))
def test_bytes_carry_their_lengths(values):
    body, header_length = http_body(request_of("BYTES", [len(values)], bytes_contents=values))
    rest, found = body[header_length:], []
    while rest:
        end = 4 + int.from_bytes(rest[:4], "little")
        found.append(rest[4:end])
        rest = rest[end:]
    assert found == values


def test_parameters_ids_and_outputs_are_those_of_the_protocol():
    request = request_of("FP32", [1], fp32_contents=[2.5])
    request.id = "7"
    request.parameters["timeout"].int64_param = 1000
    request.parameters["empty"].SetInParent()
    request.outputs.add(name="y").parameters["classification"].uint64_param = 3
    body, header_length = http_body(request)
    assert orjson.loads(body[:header_length]) == {
        "id": "7",
        "parameters": {"timeout": 1000, "binary_data_output": True},
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": [1],
                "parameters": {"binary_data_size": 4},
            }
        ],
        "outputs": [{"name": "y", "parameters": {"classification": 3, "binary_data": True}}],
    }
    assert body[header_length:] == np.float32(2.5).tobytes()


def test_outputs_are_cut_from_the_answer():
    sizes = {"a": 2, "b": 0, "c": 3}
    outputs = [
        {"name": name, "datatype": "UINT8", "shape": [n], "parameters": {"binary_data_size": n}}
        for name, n in sizes.items()
    ]
    head = orjson.dumps({"model_name": "m", "id": "7", "outputs": outputs})
    response = grpc_response(head + b"abcde", len(head))
    assert (response.model_name, response.id) == ("m", "7")
    assert [output.name for output in response.outputs] == list(sizes)
    assert list(response.raw_output_contents) == [b"ab", b"", b"cde"]


@pytest.mark.parametrize(
    ("datatype", "contents", "message"),
    [
        ("INT8", {"int_contents": [300]}, "a value of int_contents does not fit INT8"),
        ("FP16", {"fp32_contents": [1]}, "send FP16 in raw_input_contents"),
    ],
)
def test_typed_contents_that_do_not_fit_are_refused(datatype, contents, message):
    with pytest.raises(BadRequestError, match=message):
        http_body(request_of(datatype, [1], **contents))


def test_each_input_needs_one_raw_entry():
    request = request_of("FP32", [1])
    request.raw_input_contents.extend([b"0000", b"1111"])
    with pytest.raises(BadRequestError, match="one entry for each of the 1 inputs, not 2"):
        http_body(request)
