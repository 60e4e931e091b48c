import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.models.base import Model, TensorSpec
from policy.errors import InvalidInputError

DATATYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}


@pytest.mark.parametrize(("datatype", "numpy_type"), DATATYPES.items())
def test_each_datatype_has_its_numpy_dtype(datatype, numpy_type):
    assert TensorSpec("x", datatype).numpy_dtype == np.dtype(numpy_type)


@pytest.mark.parametrize("datatype", ["FLOAT", "fp32", "STRING", "", None])
def test_an_unknown_datatype_is_rejected_with_the_allowed_ones(datatype):
    with pytest.raises(InvalidInputError, match=r"datatype .* is not one of BOOL, .*BYTES"):
        TensorSpec("x", datatype)


@pytest.mark.parametrize("shape", [(0,), (-1, 8), (8, -1), [8], 8, (8.0,), (True,), None])
def test_a_wrong_shape_is_rejected(shape):
    with pytest.raises(InvalidInputError, match="shape must be a tuple"):
        TensorSpec("x", "FP32", shape)


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_wrong_name_is_rejected(name):
    with pytest.raises(InvalidInputError, match="tensor name"):
        TensorSpec(name, "FP32")


@given(
    shape=st.lists(st.integers(1, 5), max_size=3).map(tuple),
    datatype=st.sampled_from(sorted(DATATYPES)),
    batch_size=st.integers(1, 9),
)
def test_example_fits_the_specs(shape, datatype, batch_size):
    class Any(Model):
        inputs = (TensorSpec("a", datatype, shape), TensorSpec("b", "FP64"))
        outputs = inputs

        def load(self, device): ...

        def forward(self, batch):
            return batch

    example = Any().example(batch_size)
    assert set(example) == {"a", "b"}
    assert example["a"].shape == (batch_size, *shape)
    assert example["a"].dtype == np.dtype(DATATYPES[datatype])
    assert example["b"].shape == (batch_size,)
    element = b"" if datatype == "BYTES" else 0
    assert example["a"].ravel().tolist() == [element] * example["a"].size
