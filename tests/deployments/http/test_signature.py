from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deployments.errors import BadRequestError, TooLargeError
from deployments.http.inference_protocol import parse_request
from deployments.http.signature import (
    MAX_JSON_BYTES,
    JsonGuard,
    PriorityLevels,
    Signature,
    body_limit_bytes,
    claimed_rows,
)
from deployments.models.base import TensorSpec

LEVELS = st.builds(PriorityLevels, st.integers(1, 100))


@given(LEVELS)
def test_1_is_the_highest_level_and_0_the_default(levels):
    given = [levels.check(value, "it") for value in range(levels.levels + 1)]
    assert levels.steps(given[0]) == levels.steps(levels.levels)
    assert [levels.steps(level) for level in given[1:]] == list(range(levels.levels))[::-1]


@given(LEVELS, st.data())
def test_of_two_priorities_the_higher_one_applies(levels, data):
    one, other = data.draw(st.tuples(*[st.integers(0, levels.levels)] * 2))
    named = [levels.steps(level) for level in (one, other) if level]
    assert levels.steps(one, other) == max(named, default=levels.steps(0))


DIGITS = (TensorSpec("pixels", "FP32", (64,)),)
IMAGE = (TensorSpec("image", "FP32", (3, 224, 224)),)
TEXTS = (TensorSpec("text", "BYTES"),)
VALUES: dict[str, Any] = {"FP32": -0.12345678, "FP64": -1.2345678901234567e-300, "BOOL": False}


def test_a_body_may_be_as_large_as_its_rows_need():
    assert body_limit_bytes(DIGITS, 256) == 256 * 64 * 24 + 8192
    assert body_limit_bytes(TEXTS, 256) == 4 << 20
    assert body_limit_bytes(IMAGE, 256) == 4 << 20
    one_row = body_limit_bytes((TensorSpec("x", "FP32", (3, 1000, 1000)),), 256)
    assert one_row == 3_000_000 * 24 + 8192


SHAPES = st.lists(st.integers(1, 9), max_size=4).map(tuple)
SPECS = st.lists(
    st.tuples(st.sampled_from(["FP32", "FP64", "BOOL", "BYTES"]), SHAPES), min_size=1, max_size=2
)


@pytest.mark.slow
@given(SPECS, st.integers(1, 300), st.booleans(), st.booleans(), st.text('[{",\\a', max_size=5))
def test_valid_requests_pass(specs, rows, flat, indented, text):
    inputs = tuple(TensorSpec(f"x{place}", *spec) for place, spec in enumerate(specs))
    entries = []
    for spec in inputs:
        data = np.full((rows, *spec.shape), VALUES.get(spec.datatype, text), object)
        entry = {"name": spec.name, "datatype": spec.datatype, "shape": [rows, *spec.shape]}
        entries.append({**entry, "data": (data.ravel() if flat else data).tolist()})
    option = orjson.OPT_INDENT_2 if indented and flat else 0
    content = orjson.dumps({"id": "x" * 100, "inputs": entries}, option=option)
    assume(len(content) <= MAX_JSON_BYTES)
    JsonGuard(inputs, rows).check(content)
    assert parse_request(content, None, Signature(inputs, DIGITS, rows)).rows == rows


@pytest.mark.parametrize("inputs", [DIGITS, IMAGE, TEXTS])
@pytest.mark.parametrize("unit", [b"[],", b"{},", b'"",', b'["["],'])
def test_bodies_that_only_take_long_to_parse_are_refused(inputs, unit):
    text = b"[" + unit * ((4 << 20) // len(unit)) + b"0]"
    with pytest.raises((BadRequestError, TooLargeError), match="than any valid request"):
        JsonGuard(inputs, 256).check(text)


@pytest.mark.parametrize(
    ("raw", "rows"),
    [
        (b'{"inputs": [{"shape": [64, 2]}]}', 64),
        (b'{"inputs":[{"data":[1,2],"shape" :\n[ 3 ,2]}]}\x00\x01', 3),
        (b'{"inputs": [{"shape": [0, 2]}]}', 1),
        (b'{"inputs": [{"shape": [99999999999999999999]}]}', 256),
        (b'{"inputs": [{"shape": ["x"]}]}', 1),
        (b"no JSON", 1),
        (b'"shape"', 1),
    ],
)
def test_the_rows_of_a_refused_request_are_read_without_parsing_it(raw, rows):
    assert claimed_rows(raw, max_rows=256) == rows
