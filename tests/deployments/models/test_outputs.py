import numpy as np
import pytest

from deployments.errors import ModelError, StartError
from deployments.models.base import Model, TensorSpec
from deployments.models.outputs import check_forward, fit_output, wrong_shape

SCORES = TensorSpec("scores", "FP32", (10,))
LABEL = TensorSpec("label", "INT64")
WORD = TensorSpec("word", "BYTES")


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"scores": np.zeros((32, 9))}, "output 'scores': (32, 10) expected, got (32, 9)"),
        ({"scores": np.zeros((31, 10))}, "output 'scores': (32, 10) expected, got (31, 10)"),
        ({"z": np.zeros((32, 10))}, "forward returned 'z'; 'scores' is missing"),
        ({}, "forward returned nothing; 'scores' is missing"),
        ([1], "forward returned list, must return a mapping of its outputs"),
        ({"scores": np.zeros((32, 10))}, None),
    ],
)
def test_names_and_shapes(outputs, message):
    assert wrong_shape(outputs, 32, [SCORES]) == message


FITS = [
    (SCORES, [0.5, 1.0]),  # 64-bit floats are rounded
    (TensorSpec("scores", "FP32", allow_nan=True), [np.nan, np.inf, 1.0]),
    (TensorSpec("x", "FP16"), [65504.0]),
    (TensorSpec("x", "BF16"), np.array([3.389e38], np.float32)),
    (LABEL, [2.0, -(2.0**63)]),
    (TensorSpec("x", "UINT64"), np.array([2**63], np.uint64)),
    (TensorSpec("x", "INT8"), [-128, 127]),
    (TensorSpec("x", "BOOL"), [0, 1]),
    (WORD, np.array([b"a", b"bc"], object)),
    (WORD, np.array([b"a", b"bc"])),
]
MISFITS = [
    (SCORES, [np.nan], "output 'scores' has NaN or infinity; if that is right, set allow_nan"),
    (SCORES, [0.0, 1e300], "output 'scores': FP32 expected, got 1e+300"),
    (TensorSpec("s", "FP32", allow_nan=True), [np.nan, 1e300], "output 's': FP32 expected, got 1e"),
    (TensorSpec("x", "FP16"), [65520], "output 'x': FP16 expected, got 65520"),
    (TensorSpec("x", "BF16"), np.array([3.4e38], np.float32), "output 'x': BF16 expected, got 3."),
    (TensorSpec("x", "INT8"), [3, 300], "output 'x': INT8 expected, got 300"),
    (TensorSpec("x", "INT8"), [0.5], "output 'x': INT8 expected, got 0.5"),
    (TensorSpec("x", "BOOL"), [2], "output 'x': BOOL expected, got 2"),
    (LABEL, [np.nan], "output 'label': INT64 expected, got nan"),
    (LABEL, [2.0**63], "output 'label': INT64 expected, got 9.223"),
    (LABEL, np.array([2**63], np.uint64), "output 'label': INT64 expected, got 9223"),
    (LABEL, ["1"], "output 'label': INT64 expected, got <U1"),
    (WORD, np.array([b"a", "b"], object), "output 'word': BYTES expected, got str"),
]


@pytest.mark.parametrize(("spec", "values"), FITS)
def test_values_that_fit_keep_their_value_in_an_array_of_the_declared_type(spec, values):
    fitted = fit_output(spec, values)
    assert fitted.dtype == spec.numpy_dtype
    np.testing.assert_array_equal(fitted, np.asarray(values, spec.numpy_dtype))
    assert not np.shares_memory(fitted, values)


@pytest.mark.parametrize(("spec", "values", "message"), MISFITS)
def test_values_that_do_not_fit_their_declared_type_are_an_error_not_another_value(
    spec, values, message
):
    with pytest.raises(ModelError) as caught:
        fit_output(spec, values)
    assert str(caught.value).startswith(message)


class Narrow(Model):
    """Right for a batch of one only."""

    inputs = (TensorSpec("x", "FP32", (3,)),)
    outputs = (TensorSpec("y", "FP32", (3,)),)

    def load(self, device): ...

    def forward(self, batch):
        x = batch["x"]
        x += 1
        if len(x) == 7:
            raise ValueError("seven")
        return {"y": x.astype(str) if len(x) == 9 else x[:1]}

    def example(self, batch_size):
        """Return arrays that cannot be written to."""
        return {"x": np.broadcast_to(np.float32(0), (batch_size, 3))}


def test_every_size_is_tried():
    check_forward(Narrow(), [1])
    for size, message in (
        (8, r"batch of 8: output 'y': \(8, 3\) expected, got \(1, 3"),
        (7, "failed on its example of 7: ValueError: seven"),
        (9, "batch of 9: output 'y': FP32 expected, got <U"),
    ):
        with pytest.raises(StartError, match=message):
            check_forward(Narrow(), [1, size])
