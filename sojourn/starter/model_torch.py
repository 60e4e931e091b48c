"""Your model in torch: what goes in and out, how to load it, and how to compute a batch."""

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from sojourn import Model, TensorSpec


class Classifier(Model):
    """A small network with random weights, to be replaced by yours.

    What the constructor takes is set under `options` in serve.yaml.
    """

    inputs = (TensorSpec("features", "FP32", (4,)),)
    outputs = (TensorSpec("label", "INT64"), TensorSpec("scores", "FP32", (3,)))

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def load(self, device: str) -> None:
        """Load the network on `device`, which is ``cpu`` or ``cuda``."""
        torch.manual_seed(self._seed)
        self._device = device
        # To read weights: safetensors.torch.load_file, then load_state_dict.
        network = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
        self._network = network.to(device).eval()

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Compute a batch; row i of each output answers row i of the inputs."""
        with torch.inference_mode():
            features = torch.from_numpy(batch["features"]).to(self._device)
            scores = self._network(features).softmax(-1).cpu().numpy()
        return {"label": scores.argmax(axis=1), "scores": scores}
