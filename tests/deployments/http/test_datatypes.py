"""BF16, against torch's bfloat16."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from deployments.errors import BadRequestError
from deployments.http.tensors import LARGEST_BF16, codec_of
from deployments.models.base import TensorSpec

ANY = codec_of(TensorSpec("x", "BF16", allow_nan=True))
FINITE = codec_of(TensorSpec("x", "BF16"))
FLOATS = npst.arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32))


def rounded(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(array).to(torch.bfloat16)


@given(FLOATS)
def test_answers_are_rounded_as_torch_rounds(array: NDArray[Any]) -> None:
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
def test_numbers_of_a_request_are_the_same_as_json_and_as_raw_bytes(values: list[float]) -> None:
    as_json = FINITE.from_json(values, [len(values)])
    raw = rounded(np.array(values, np.float32)).view(torch.uint16).numpy().tobytes()
    as_binary = FINITE.from_binary(memoryview(raw), 0, 2 * len(values), [len(values)])
    np.testing.assert_array_equal(as_json, as_binary)
    # Values that a model gets are values of BF16: they pass through torch unchanged.
    np.testing.assert_array_equal(rounded(as_json).float().numpy(), as_json)


@pytest.mark.parametrize("value", [3.4e38, -3.4e38, 1e39, 2**200])
def test_what_rounds_to_infinity_is_rejected(value: float) -> None:
    with pytest.raises(BadRequestError, match="NaN and infinity are not allowed"):
        FINITE.from_json([value], [1])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_raw_nan_and_infinity_are_rejected_unless_allowed(value: float) -> None:
    raw = bytes(ANY.to_binary(np.array([value], np.float32)))
    with pytest.raises(BadRequestError, match="NaN and infinity are not allowed"):
        FINITE.from_binary(memoryview(raw), 0, 2, [1])
    np.testing.assert_array_equal(
        ANY.from_binary(memoryview(raw), 0, 2, [1]), np.array([value], np.float32)
    )


def test_a_value_has_two_raw_bytes() -> None:
    with pytest.raises(BadRequestError, match="binary_data_size must be 4 for shape"):
        codec_of(TensorSpec("x", "BF16", (2,))).from_binary(memoryview(bytes(8)), 0, 8, [1, 2])
