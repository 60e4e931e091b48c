"""A model's example as a batch, and one row of it as a readable request."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.models.base import Model, TensorSpec


def example_batch(model: Model, batch_size: int) -> dict[str, NDArray[Any]]:
    """Return `Model.example` in new arrays, which `forward` may change."""
    return {name: np.array(array) for name, array in model.example(batch_size).items()}


def example_request(
    specs: Sequence[TensorSpec], example: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """Return an inference request of one row, ready for JSON; `example` has the inputs."""
    inputs = [
        {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": list(example[spec.name].shape),
            "data": [_readable(value) for value in example[spec.name].ravel().tolist()],
        }
        for spec in specs
    ]
    return {"inputs": inputs}


def _readable(value: Any) -> Any:
    """Return an element in its most readable JSON form: 7 instead of 7.0, text as text."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
