from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.models.base import Model, TensorSpec
from policy.errors import InvalidInputError

INTEGERS = [f"{kind}{bits}" for kind in ("UINT", "INT") for bits in (8, 16, 32, 64)]
DATATYPES: dict[str, Any] = {
    **{name: np.dtype(name.lower()) for name in INTEGERS},
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "BOOL": np.bool_,
    "BF16": np.float32,
    "BYTES": np.object_,
}


@pytest.mark.parametrize("shape", [(0,), (-2, 8), (8, -3), [8], 8, (8.0,), (True,), None])
def test_a_wrong_shape_is_rejected(shape):
    with pytest.raises(InvalidInputError, match="shape must be a tuple"):
        TensorSpec("x", "FP32", shape)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((-1,), {"max_dim": 0}, "max_dim must be a whole number of at least 1, not 0"),
        ((-1,), {"max_dim": 8.0}, "max_dim must be a whole number of at least 1, not 8.0"),
        ((-1,), {"max_dim": 8, "example_dim": 9}, "example_dim must be .* from 1 to max_dim, 8"),
        ((-1,), {"example_dim": 0}, "example_dim must be .* not 0"),
        ((2,), {"pad": 0}, r"pad needs exactly one dimension of -1, not the shape \(2,\)"),
        ((-1, -1), {"pad": 0}, "pad needs exactly one dimension of -1"),
        ((-1, -1), {"length_of": "y"}, "length_of needs exactly one dimension of -1"),
        ((-1,), {"lengths": "n"}, "lengths needs pad"),
        ((-1,), {"pad": 256}, "pad must be a value of UINT8, not 256"),
        ((-1,), {"pad": 0.5}, "pad must be a value of UINT8, not 0.5"),
        ((-1,), {"pad": b""}, "pad must be a value of UINT8, not b''"),
        ((-1,), {"pad": True}, "pad must be a value of UINT8, not True"),
    ],
)
def test_options_that_do_not_fit_the_shape_are_rejected(shape, options, message):
    with pytest.raises(InvalidInputError, match=message):
        TensorSpec("x", "UINT8", shape, **options)


def test_a_dimension_of_minus_1_has_any_length_up_to_a_bound():
    spec = TensorSpec("x", "FP32", (3, -1, -1), max_dim=8)
    assert (spec.is_variable, spec.max_shape, spec.example_shape) == (True, (3, 8, 8), (3, 8, 8))
    assert spec.fits([3, 1, 8])
    for shape in ([3, 0, 8], [3, 1, 9], [2, 1, 8], [3, 8], [3, -1, 8]):
        assert not spec.fits(shape)
    assert not TensorSpec("x", "FP32", (3,)).is_variable


@given(
    shape=st.lists(st.integers(1, 5), max_size=3).map(tuple),
    datatype=st.sampled_from(sorted(DATATYPES)),
    size=st.integers(1, 9),
)
def test_the_example_fits_the_specs_in_the_lengths_for_which_the_profile_is_measured(
    shape, datatype, size
):
    class Tagger(Model):
        inputs = (
            TensorSpec("a", datatype, shape),
            TensorSpec("tokens", "INT64", (-1,), example_dim=5, pad=0, lengths="lengths"),
            TensorSpec("image", "FP32", (2, -1), max_dim=7),
        )
        outputs = inputs

        def load(self, device): ...

        def forward(self, batch):
            return batch

    example = Tagger().example(size)
    assert {name: (array.shape, array.dtype) for name, array in example.items()} == {
        "a": ((size, *shape), np.dtype(DATATYPES[datatype])),
        "tokens": ((size, 5), np.int64),
        "lengths": ((size,), np.int64),
        "image": ((size, 2, 7), np.float32),
    }
    assert example["lengths"].tolist() == [5] * size
    assert set(example["a"].ravel().tolist()) == {b"" if datatype == "BYTES" else 0}
