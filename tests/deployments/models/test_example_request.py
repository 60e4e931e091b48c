import numpy as np

from deployments.models.base import TensorSpec
from deployments.models.example_request import example_request


def test_the_example_is_one_row_as_a_person_would_write_it():
    specs = (TensorSpec("text", "BYTES", ()), TensorSpec("x", "FP32", (2,)))
    example = {
        "text": np.array([b"caf\xc3\xa9"], object),
        "x": np.array([[7.0, 0.5]], np.float32),
    }
    text, numbers = example_request(specs, example)["inputs"]
    assert text == {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["café"]}
    assert numbers == {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [7, 0.5]}
    assert isinstance(numbers["data"][0], int)
