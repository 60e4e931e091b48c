"""A model whose weights are one number, by which it multiplies."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.models.base import LoadWeights, Model, TensorSpec
from deployments.models.weights import load_weights


class Scale(Model):
    """Multiplies `x` by its weight."""

    inputs = (TensorSpec("x", "FP32", (1,)),)
    outputs = (TensorSpec("y", "FP32", (1,)),)

    def load(self, device: str, weights: LoadWeights = load_weights) -> None:
        self._factor = weights("scale.safetensors")["factor"].numpy()

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {"y": np.asarray(batch["x"] * self._factor)}
