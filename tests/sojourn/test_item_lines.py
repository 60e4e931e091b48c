import json
from base64 import b64encode

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.models.base import TensorSpec
from deployments.pipelines.core.errors import StageError
from policy.errors import InvalidInputError
from sojourn.item_lines import read_items, result_line

IMAGE, NOTE = TensorSpec("image", "BYTES", ()), TensorSpec("note", "BYTES", ())
VECTOR = TensorSpec("x", "FP32", (2,))

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(st.tuples(finite, finite), st.binary(), st.text()), max_size=3))
def test_every_item_is_read_as_it_was_written(items):
    lines = [
        json.dumps({"x": x, "image": {"base64": b64encode(image).decode()}, "note": note}).encode()
        for x, image, note in items
    ]
    read = read_items((VECTOR, IMAGE, NOTE), lines)
    for found, (x, image, note) in zip(read, items, strict=True):
        assert isinstance(found, dict)
        assert found["x"].dtype == np.float32
        assert found["x"].tolist() == [*x]
        assert (found["image"], found["note"]) == (image, note.encode())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"nonsense", "line 2: "),
        (b'{"x": [1, 2]}', "must be an object with 'x', 'note'"),
        (b'{"x": [1], "note": "a"}', "x: the shape must be (2,), not (1,)"),
        (b'{"x": "far", "note": "a"}', "line 2: "),
        (b'{"x": [1, 2], "note": 7}', "line 2: "),
        (b'{"x": [1, 2], "note": {"hex": "00"}}', "base64"),
        (b'{"x": [1, 2], "note": {"base64": "a"}}', "line 2: "),
    ],
)
def test_a_line_without_an_item_says_why_and_stops_nothing(line, why):
    good = b'{"x": [1, 2], "note": "a"}'
    before, error, after = read_items((VECTOR, NOTE), [good, line, good])
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert isinstance(error, InvalidInputError)
    assert why in str(error)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (np.array([1.0, 2.5]), [1.0, 2.5]),
        ({"text": b"caf\xc3\xa9", "scores": (1, 2)}, {"text": "caf\u00e9", "scores": [1, 2]}),
        (InvalidInputError("line 3: nonsense"), {"error": "line 3: nonsense"}),
        (
            StageError("resize", ValueError("a secret")),
            {"error": "stage 'resize' failed on this request"},
        ),
    ],
)
def test_a_result_is_one_line(result, expected):
    line = result_line(result)
    assert b"\n" not in line
    assert orjson.loads(line) == expected
