"""Large JSON is parsed in pieces, with the same result as at once."""

import json
import math
import tracemalloc
from collections.abc import Generator
from typing import Any
from unittest import mock

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.errors import BadRequestError, RequestError, TooLargeError
from deployments.http import large_json
from deployments.http.inference_protocol import InferenceRequest, parse_in_turns, parse_request
from deployments.http.large_json import MAX_REST_BYTES, PIECE_BYTES, cut_lists
from deployments.http.signature import Signature
from deployments.models.base import TensorSpec

SIGNATURE = Signature(
    (TensorSpec("x", "FP32", (2, 3)), TensorSpec("k", "INT64"), TensorSpec("f", "BOOL", (2,))),
    (TensorSpec("y", "FP32"),),
    max_rows=4,
)


def finish(work: Generator[None, None, InferenceRequest]) -> tuple[InferenceRequest, int]:
    """Return what work returns, and in how many pieces."""
    pieces = 0
    while True:
        try:
            next(work)
            pieces += 1
        except StopIteration as stop:
            return stop.value, pieces


def in_pieces(text: bytes, signature: Signature = SIGNATURE, size: int = 1) -> InferenceRequest:
    """Parse with pieces as short as `size`, which cuts every list."""
    with (
        mock.patch.object(large_json, "PIECE_BYTES", size),
        mock.patch.object(large_json, "_CUT_FROM_BYTES", 0),
    ):
        return finish(parse_in_turns(text, None, signature))[0]


def outcome(parse: Any, *args: Any) -> Any:
    """Return the inputs that were parsed, or that the request was refused."""
    try:
        request = parse(*args)
    except RequestError as error:
        return error.status
    return {name: (array.dtype, array.tolist()) for name, array in request.inputs.items()}


def draw_request(data: st.DataObject) -> dict[str, Any]:
    rows = data.draw(st.integers(1, 4))
    inputs = []
    for spec in SIGNATURE.inputs:
        shape = (rows, *spec.shape)
        kind = spec.numpy_dtype.kind
        values: st.SearchStrategy[Any] = (
            st.floats(-(2.0**99), 2.0**99, width=32)
            if kind == "f"
            else st.integers(-(2**63), 2**63 - 1)
        )
        if kind == "b":
            values = st.booleans()
        size = math.prod(shape)
        array = np.empty(size, object)
        array[:] = data.draw(st.lists(values, min_size=size, max_size=size))
        if data.draw(st.booleans()):
            array = array.reshape(shape)
        entry = {
            "name": spec.name,
            "shape": list(shape),
            "datatype": spec.datatype,
            "data": array.tolist(),
        }
        keys = data.draw(st.permutations(list(entry)))
        inputs.append({key: entry[key] for key in keys})
    return {"id": "a", "inputs": data.draw(st.permutations(inputs)), "parameters": {"p": 1}}


@settings(max_examples=30, deadline=None)
@given(st.data(), st.sampled_from([None, 0, 3]), st.integers(1, 40))
def test_every_valid_request_is_parsed_as_at_once(
    data: st.DataObject, indent: int | None, size: int
) -> None:
    text = json.dumps(draw_request(data), indent=indent).encode()
    whole, parts = parse_request(text, None, SIGNATURE), in_pieces(text, SIGNATURE, size)
    for name, array in whole.inputs.items():
        np.testing.assert_array_equal(parts.inputs[name], array)
        assert parts.inputs[name].dtype == array.dtype
        assert parts.inputs[name].shape == array.shape
    assert parts[1:] == whole[1:]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.data(),
    st.lists(
        st.tuples(st.integers(0, 10_000), st.sampled_from([0, 1]), st.sampled_from('[],1 -e."{}t')),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 20),
)
def test_whatever_is_wrong_is_wrong_in_pieces_too(
    data: st.DataObject, edits: list[tuple[int, int, str]], size: int
) -> None:
    """Characters are replaced by others, or others inserted."""
    text = json.dumps(draw_request(data)).encode()
    for at, replaced, character in edits:
        at %= len(text)
        text = text[:at] + character.encode() + text[at + replaced :]
    whole = outcome(parse_request, text, None, SIGNATURE)
    parts = outcome(in_pieces, text, SIGNATURE, size)
    assert parts == whole or (isinstance(whole, int) and isinstance(parts, int)), text


NESTED = Signature((TensorSpec("x", "FP32", (2,)),), (), max_rows=2)


@pytest.mark.parametrize(
    "data",
    [
        *("[[1,2],3[,4]]", "[[1,]2,[3,4]]", "[[1,2]3,[,4]]", "[[1,2][3,4]]", "[1,2],[3,4]"),
        *("[[1,2],[3,4],]", "[,[1,2],[3,4]]", "[[1,2],,[3,4]]", "[[1 2],[3,4]]", "[[1,2],[3 ,4]"),
        *("[[1,2],[3,[4]]]", "[[[1,2],[3,4]]]", "[[1,2,3],[4]]", "[[],[1,2,3,4]]", "[[1,2],[3]]"),
        *("[1,2,3,4,]", "[,1,2,3,4]", "[1,2,3]", "[1,2,3,4,5]", "[1,2,3,null]", "[1,2,3,true]"),
        *("[1,2,3,NaN]", "[1,2,3,1e]", "[1,2,3,01]", "[1,2,3,+4]", "[1,2,3,1e999]", "[]", "[[]]"),
        *("[[1,2],[3,4]", "[1,2,3,4}", "[1,2,3,4", '[1,2,3,"4"]', "[1,2,3,{}]", "5"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_what_is_not_valid_json_or_has_another_shape_is_refused(data: str, size: int) -> None:
    text = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":%b}]}' % data.encode()
    for parse in (lambda: parse_request(text, None, NESTED), lambda: in_pieces(text, NESTED, size)):
        with pytest.raises(BadRequestError):
            parse()


@pytest.mark.parametrize("style", ["flat", "rows", "indented"])
def test_a_large_image_is_parsed_in_pieces_of_bounded_size(style: str) -> None:
    shape = (3, 64, 64)
    signature = Signature((TensorSpec("x", "FP32", (3, -1, -1)),), (), max_rows=2)
    x = np.random.default_rng(0).random((2, *shape)).astype(np.float32)
    tensor = {
        "name": "x",
        "datatype": "FP32",
        "shape": list(x.shape),
        "data": x.ravel().tolist() if style == "flat" else x.tolist(),
    }
    text = json.dumps({"inputs": [tensor]}, indent=1 if style == "indented" else None).encode()
    parsed: list[int] = []
    loads = orjson.loads

    def recording(piece: bytes) -> Any:
        parsed.append(len(piece))
        return loads(piece)

    with mock.patch.object(orjson, "loads", recording):
        request, pieces = finish(parse_in_turns(text, None, signature))
    np.testing.assert_array_equal(request.inputs["x"], x)
    # A piece ends at the first comma behind its size.
    assert max(parsed) <= PIECE_BYTES + 100
    assert pieces >= len(text) / (PIECE_BYTES + 100)


def test_only_the_long_lists_are_cut() -> None:
    numbers = b"[" + b"1," * 5_000 + b"1]"
    text = b'{"data":"data","x":{"data" : [1,2]},"y":[{"data":\n%b ,"z":"]"}]}' % numbers
    cut = cut_lists(text, 9)
    (found,) = cut.lists.values()
    assert text[found.start : found.stop] == numbers
    rest = orjson.loads(cut.rest)
    assert rest["x"] == {"data": [1, 2]}
    assert cut.take(rest["y"][0]["data"]) == found
    assert not cut.lists


def test_a_text_that_looks_like_a_list_stays_a_text() -> None:
    text = rb'{"inputs":[],"id":"\"data\":[%b]"}' % (b"1," * 5_000)
    assert cut_lists(text, 9).rest == text


def test_long_lists_where_no_tensor_is_are_refused() -> None:
    numbers = b"[" + b"1," * 5_000 + b"1]"
    ok = b'{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}'
    for text in (
        b'{"data":%b,"inputs":[%b]}' % (numbers, ok),
        b'{"inputs":[%b],"data":%b}' % (ok.replace(b"[1,2]}", b'[1,2],"data":%b}' % numbers), b"0"),
    ):
        with pytest.raises(BadRequestError):
            finish(parse_in_turns(text, None, NESTED))


def test_much_besides_the_tensors_is_refused() -> None:
    text = b'{"inputs":[],"parameters":{"p":"%b"}}' % (b"x" * MAX_REST_BYTES)
    with pytest.raises(TooLargeError, match="besides its tensors' data"):
        finish(parse_in_turns(text, None, NESTED))
    texts = Signature((TensorSpec("t", "BYTES"),), (), max_rows=2)
    entry = {"name": "t", "datatype": "BYTES", "shape": [2], "data": ["a" * MAX_REST_BYTES, "b"]}
    text = orjson.dumps({"inputs": [entry]})
    for padding in (b"", b" " * MAX_REST_BYTES):  # blanks around a text are no part of it
        request, _ = finish(parse_in_turns(padding + text + padding, None, texts))
        assert request.inputs["t"][1] == b"b"


def test_hostile_keys_are_not_looked_for_without_end() -> None:
    text = b'{"inputs":[' + b'{"data":[' * 100_000
    with mock.patch.object(large_json, "_end_of_numbers", wraps=large_json._end_of_numbers) as seen:
        cut_lists(text, 5)
    assert seen.call_count == 5


def test_a_shape_that_was_never_sent_takes_no_memory() -> None:
    signature = Signature((TensorSpec("x", "FP32", (1000, 1000)),), (), max_rows=100)
    numbers = b"[" + b"1," * 5_000 + b"1]"
    entry = b'{"name":"x","datatype":"FP32","shape":[100,1000,1000],"data":%b}' % numbers
    tracemalloc.start()
    try:
        with pytest.raises(BadRequestError, match="must be nested as the shape"):
            finish(parse_in_turns(b'{"inputs":[%b]}' % entry, None, signature))
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
