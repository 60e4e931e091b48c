"""What a model returned, against what it declares."""

import numpy as np
import pytest

from deployments.errors import StartError
from deployments.models.base import Model, TensorSpec
from deployments.models.outputs import check_forward, wrong_shape, wrong_values

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


@pytest.mark.parametrize(
    ("spec", "values", "message"),
    [
        (SCORES, np.zeros(10), None),  # 64-bit floats are converted
        (SCORES, np.array([np.nan]), "output 'scores' has NaN or infinity for the model's own"),
        (SCORES, np.array([np.inf], np.float32), "output 'scores' has NaN or infinity"),
        (TensorSpec("scores", "FP32", allow_nan=True), np.array([np.nan]), None),
        (LABEL, np.array([1], np.int32), None),
        (LABEL, np.array([1.0]), "output 'label': INT64 expected, got float64"),
        (WORD, np.array([b"a", b"bc"], object), None),
        (WORD, np.array(["a"], object), "output 'word': BYTES must be bytes, got str"),
    ],
)
def test_values(spec, values, message):
    found = wrong_values({spec.name: values}, [spec])
    assert found is None if message is None else found.startswith(message)


class Narrow(Model):
    """Right for a batch of one only."""

    inputs = (TensorSpec("x", "FP32", (3,)),)
    outputs = (TensorSpec("y", "FP32", (3,)),)

    def load(self, device):
        """Load nothing."""

    def forward(self, batch):
        """Forget all rows but the first."""
        if len(batch["x"]) == 7:
            raise ValueError("seven")
        return {"y": batch["x"][:1]}


def test_every_size_is_tried():
    check_forward(Narrow(), [1])
    with pytest.raises(StartError, match=r"batch of 8: output 'y': \(8, 3\) expected, got \(1, 3"):
        check_forward(Narrow(), [1, 8])
    with pytest.raises(StartError, match=r"failed on its example of 7: ValueError: seven"):
        check_forward(Narrow(), [7])
