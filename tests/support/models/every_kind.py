"""A model with an input of every kind of type, and answers to check."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.models.base import Model, TensorSpec


class Shouts(Model):
    """Doubles numbers, inverts flags and capitalizes text."""

    inputs = (
        TensorSpec("half", "FP16", (2,)),
        TensorSpec("single", "FP32", (2,)),
        TensorSpec("flag", "BOOL"),
        TensorSpec("text", "BYTES", (2,)),
    )
    outputs = inputs

    def load(self, device): ...

    def forward(self, batch):
        text = batch["text"]
        upper = np.array([element.upper() for element in text.ravel()], object)
        return {
            "half": 2 * batch["half"],
            "single": 2 * batch["single"],
            "flag": ~batch["flag"],
            "text": upper.reshape(text.shape),
        }


ARRAYS: dict[str, NDArray[Any]] = {
    "half": np.array([[0.5, 1], [2, 3]], np.float16),
    "single": np.array([[0.1, 1e30], [-2, 3]], np.float32),
    "flag": np.array([True, False]),
    "text": np.array([["größe", ""], ["a", "b\0c"]], object),
}
CAPITALS = [["GRößE", ""], ["A", "B\0C"]]  # bytes.upper() changes only ASCII


def check(result):
    assert result.as_numpy("half").dtype == np.float16
    np.testing.assert_array_equal(result.as_numpy("half"), 2 * ARRAYS["half"])
    np.testing.assert_array_equal(result.as_numpy("single"), 2 * ARRAYS["single"])
    np.testing.assert_array_equal(result.as_numpy("flag"), ~ARRAYS["flag"])
    text = [
        [element if isinstance(element, str) else element.decode() for element in row]
        for row in result.as_numpy("text")
    ]
    assert text == CAPITALS
