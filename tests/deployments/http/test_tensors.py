import math
import tracemalloc

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from deployments.errors import BadRequestError, TooLargeError
from deployments.http.tensors import MAX_TEXTS, booleans_possible, codec_of
from deployments.models.base import TensorSpec

NUMBERS = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")
FRACTIONS = ("FP16", "FP32", "FP64")
#: The largest finite value of BF16.
LARGEST_BF16 = (2 - 2**-7) * 2.0**127
STRINGS = TensorSpec("text", "BYTES", (2,))


def arrays(spec):
    shape = (3, *spec.shape)
    if spec.datatype == "BYTES":
        return npst.arrays(object, shape, elements=st.text(max_size=5).map(str.encode), fill=None)
    limits = None
    if spec.numpy_dtype.kind == "f":
        # Without bounds, Hypothesis draws doubles and discards those beyond the type.
        largest = float(np.finfo(spec.numpy_dtype).max)
        limits = {"allow_nan": False, "min_value": -largest, "max_value": largest}
    return npst.arrays(spec.numpy_dtype, shape, elements=limits)


@pytest.mark.parametrize("datatype", [*NUMBERS, *FRACTIONS, "BYTES"])
@given(data=st.data())
@settings(max_examples=15)
def test_arrays_survive_a_round_trip_in_both_encodings(datatype, data):
    spec = TensorSpec("x", datatype, (2,))
    codec = codec_of(spec)
    array = data.draw(arrays(spec))
    text = orjson.dumps(codec.to_json(array), option=orjson.OPT_SERIALIZE_NUMPY)
    from_json = codec.from_json(orjson.loads(text), [3, 2])
    raw = bytes(codec.to_binary(array))
    from_binary = codec.from_binary(memoryview(b"?" + raw), 1, len(raw), [3, 2])
    for read in (from_json, from_binary):
        assert read.dtype == spec.numpy_dtype
        np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize(
    ("raw", "size", "problem"),
    [
        (bytes(8), 8.0, "binary_data_size must be at least 8"),
        (bytes(8), True, "binary_data_size must be at least 8"),
        (bytes(7), 8, "the body ends before the end of this tensor"),
        (b"\xff\xff\xff\xff" + bytes(4), 8, "an element extends beyond binary_data_size"),
        (bytes(9), 9, "binary_data_size has 1 bytes more than its 2 elements"),
    ],
)
def test_names_the_problem_of_raw_strings(raw, size, problem):
    with pytest.raises(BadRequestError, match=problem):
        codec_of(STRINGS).from_binary(memoryview(raw), 0, size, [1, 2])


@given(
    raw=st.lists(st.binary(max_size=2), min_size=1, max_size=4).map(
        lambda strings: b"".join(len(one).to_bytes(4, "little") + one for one in strings)
    ),
    more=st.sampled_from([b"", b"", b"\0"]),
    rows=st.integers(1, 2),
)
def test_raw_strings_are_read_in_full_or_rejected(raw, more, rows):
    codec, raw = codec_of(STRINGS), raw + more
    try:
        read = codec.from_binary(memoryview(raw), 0, len(raw), [rows, 2])
    except BadRequestError:
        return
    assert bytes(codec.to_binary(read)) == raw


def test_invalid_utf8_cannot_be_requested_as_json():
    array = np.array([[b"\xff", b"a"]], object)
    with pytest.raises(BadRequestError, match="not valid UTF-8; request it with binary_data true"):
        codec_of(STRINGS).to_json(array)


@pytest.mark.parametrize("position", [0, 3])
@pytest.mark.parametrize(
    ("datatype", "wrong"),
    [("FP32", [True, "1", None]), ("INT32", [1.0, True]), ("BOOL", [1]), ("UINT8", ["1"])],
)
def test_one_value_of_a_wrong_type_is_rejected(datatype, wrong, position):
    for value in wrong:
        data = [False if datatype == "BOOL" else 0] * 4
        data[position] = value
        with pytest.raises(BadRequestError, match="must contain only"):
            codec_of(TensorSpec("x", datatype)).from_json(data, [4])


JSON_VALUES = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-2, 300),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["1", None, {}, [1]]),
)


@pytest.mark.parametrize("datatype", [*NUMBERS, *FRACTIONS])
@settings(max_examples=20)
@given(data=st.lists(JSON_VALUES, min_size=1, max_size=4))
def test_data_without_booleans_is_read_as_any_other(datatype, data):
    codec = codec_of(TensorSpec("x", datatype))
    outcomes = []
    for booleans in (True, False):
        try:
            array = codec.from_json(data, [len(data)], booleans)
            outcomes.append((array.dtype, array.tobytes(), array.flags.writeable))
        except BadRequestError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


JSON_TEXTS = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("trufalse ", max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ul"), inner, max_size=2),
)


@given(JSON_TEXTS)
def test_no_boolean_is_overlooked(content):
    text = orjson.dumps(content)
    if b"true" in text or b"false" in text:
        assert booleans_possible(text)


@pytest.mark.parametrize(
    "data",
    [
        # Strings padded to the longest: 2 MB times the number of entries.
        ["x" * 2_000_000, *[0] * 99_999],
        [[0] * 50_000, *[0] * 50_000],
        [[[0] * 100_000]],
    ],
)
def test_ragged_data_does_not_multiply_the_memory_of_the_body(data):
    codec = codec_of(TensorSpec("x", "FP32", (1,)))
    tracemalloc.start()
    try:
        with pytest.raises(BadRequestError):
            codec.from_json(data, [100_000, 1])
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


ANY = codec_of(TensorSpec("x", "BF16", allow_nan=True))
FINITE = codec_of(TensorSpec("x", "BF16"))
FLOATS = npst.arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32))


def rounded(array):
    return torch.from_numpy(array).to(torch.bfloat16)


@given(FLOATS)
def test_answers_are_rounded_as_torch_rounds(array):
    raw = ANY.to_binary(array)
    bits = rounded(array).view(torch.uint16).numpy()
    sent = np.frombuffer(raw, "<u2")
    is_nan = np.isnan(array)
    np.testing.assert_array_equal(sent[~is_nan], bits[~is_nan])
    np.testing.assert_array_equal(ANY.to_json(array), rounded(array).float().numpy())
    again = ANY.from_binary(memoryview(raw), 0, len(raw), [len(array)])
    assert again.dtype == np.float32
    np.testing.assert_array_equal(again, rounded(array).float().numpy())


@given(st.lists(st.floats(-LARGEST_BF16, LARGEST_BF16), min_size=1))
def test_numbers_of_a_request_are_the_same_as_json_and_as_raw_bytes(values):
    as_json = FINITE.from_json(values, [len(values)])
    raw = rounded(np.array(values, np.float32)).view(torch.uint16).numpy().tobytes()
    as_binary = FINITE.from_binary(memoryview(raw), 0, 2 * len(values), [len(values)])
    np.testing.assert_array_equal(as_json, as_binary)
    # Values that a model gets are values of BF16: they pass through torch unchanged.
    np.testing.assert_array_equal(rounded(as_json).float().numpy(), as_json)


@pytest.mark.parametrize("value", [3.4e38, -3.4e38, 1e39, 2**200])
def test_what_rounds_to_infinity_is_rejected(value):
    with pytest.raises(BadRequestError, match="NaN and infinity are not allowed"):
        FINITE.from_json([value], [1])


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("datatype", ["FP32", "BF16"])
def test_raw_nan_and_infinity_are_rejected_unless_allowed(datatype, value):
    allowed = codec_of(TensorSpec("x", datatype, allow_nan=True))
    raw = bytes(allowed.to_binary(np.array([value], np.float32)))
    with pytest.raises(BadRequestError, match="NaN and infinity are not allowed"):
        codec_of(TensorSpec("x", datatype)).from_binary(memoryview(raw), 0, len(raw), [1])
    read = allowed.from_binary(memoryview(raw), 0, len(raw), [1])
    np.testing.assert_array_equal(read, np.array([value], np.float32))


def test_more_texts_than_can_be_taken_apart_soon_are_refused():
    """A million empty ones blocked the event loop for 1.2 s."""
    codec = codec_of(TensorSpec("text", "BYTES", (-1,), max_dim=1 << 20))
    raw = memoryview(bytes(4 * (MAX_TEXTS + 1)))
    assert codec.from_binary(raw, 0, len(raw) - 4, [1, MAX_TEXTS]).size == MAX_TEXTS
    with pytest.raises(TooLargeError, match="at most 32768 elements"):
        codec.from_binary(raw, 0, len(raw), [1, MAX_TEXTS + 1])
