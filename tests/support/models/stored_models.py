"""Models whose weights are in a store: a large network, and a single number."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from deployments.models.base import LoadWeights, Model, TensorSpec
from deployments.models.weights import load_weights

WIDTH = 2048
LAYERS = 6


class Layers(Model):
    """Linear layers, each of the identity times its number; large enough to stand out in memory."""

    inputs = outputs = (TensorSpec("x", "FP32", (WIDTH,)),)

    def load(self, device: str, weights: LoadWeights = load_weights) -> None:
        with torch.device("meta"):
            self._network = nn.Sequential(
                *(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
            )
        self._network.load_state_dict(weights("layers.safetensors"), assign=True)

    def forward(self, batch: Any) -> dict[str, Any]:
        with torch.inference_mode():
            return {"x": self._network(torch.from_numpy(np.array(batch["x"]))).numpy()}


def layer_weights() -> dict[str, np.ndarray]:
    """Return the weights that `Layers` loads."""
    return {f"{i}.weight": (i + 1) * np.eye(WIDTH, dtype=np.float32) for i in range(LAYERS)}


class Scale(Model):
    """Multiplies `x` by its weight."""

    inputs = (TensorSpec("x", "FP32", (1,)),)
    outputs = (TensorSpec("y", "FP32", (1,)),)

    def load(self, device: str, weights: LoadWeights = load_weights) -> None:
        self._factor = weights("scale.safetensors")["factor"].numpy()

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {"y": np.asarray(batch["x"] * self._factor)}
