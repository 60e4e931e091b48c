"""The example request of a model."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.models.base import Model, TensorSpec
from deployments.models.example_request import example_request


class TextAndNumbers(Model):
    """A model with an input of text and one of numbers."""

    inputs = (TensorSpec("text", "BYTES", ()), TensorSpec("x", "FP32", (2,)))
    outputs = (TensorSpec("y", "FP32", ()),)

    def load(self, device: str) -> None: ...

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        raise NotImplementedError

    def example(self, rows: int) -> dict[str, NDArray[Any]]:
        return {
            "text": np.array(rows * [b"caf\xc3\xa9"], object),
            "x": np.array(rows * [[7.0, 0.5]], np.float32),
        }


def test_the_example_is_one_row_as_a_person_would_write_it() -> None:
    model = TextAndNumbers()
    text, numbers = example_request(model.inputs, model.example(1))["inputs"]
    assert text == {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["café"]}
    assert numbers == {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [7, 0.5]}
    assert isinstance(numbers["data"][0], int)
