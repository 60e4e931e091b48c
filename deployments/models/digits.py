"""A small convolutional network, with its weights, that recognizes handwritten digits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from deployments.models.base import LoadWeights, Model, TensorSpec
from deployments.models.weights import load_weights
from policy.errors import InvalidInputError

WEIGHTS = Path(__file__).with_name("digits.safetensors")
PIXEL_MAX = 16.0

#: A handwritten 3: the first image of the held-out test set.
EXAMPLE = (
    (0, 0, 7, 15, 13, 1, 0, 0),
    (0, 8, 13, 6, 15, 4, 0, 0),
    (0, 2, 1, 13, 13, 0, 0, 0),
    (0, 0, 2, 15, 11, 1, 0, 0),
    (0, 0, 0, 1, 12, 12, 1, 0),
    (0, 0, 0, 0, 1, 10, 8, 0),
    (0, 0, 8, 4, 5, 14, 9, 0),
    (0, 0, 7, 13, 13, 9, 0, 0),
)


def make_network() -> nn.Sequential:
    """Return the untrained network. It maps (n, 1, 8, 8) pixels in 0..1 to (n, 10) logits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


class Digits(Model):
    """Recognizes handwritten digits of 8 × 8 pixels.

    ``scripts/train_digits.py`` trained it on the digits that scikit-learn bundles. One of torch's
    CPU `threads` is best for so small a network, and lets a machine run as many replicas as it has
    cores. `weights` is a safetensors file, or ``store://NAME``; None: the file that comes with
    Sojourn.
    """

    inputs = (TensorSpec("image", "FP32", (8, 8)),)
    outputs = (TensorSpec("label", "INT64", ()), TensorSpec("probabilities", "FP32", (10,)))

    def __init__(self, threads: int = 1, weights: str | None = None) -> None:
        self._threads = threads
        self._weights = weights or WEIGHTS

    def load(self, device: str, weights: LoadWeights = load_weights) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise InvalidInputError(
                "device cuda: torch finds no GPU (no NVIDIA GPU, no driver, or a torch build "
                "without CUDA); use device cpu"
            )
        torch.set_num_threads(self._threads)
        self._device = torch.device(device)
        with torch.device("meta"):
            self._network = make_network()
        self._network.load_state_dict(weights(self._weights, self._device), assign=True)
        self._network.to(self._device).eval()

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the most likely digit and the probabilities of all ten, for each image."""
        with torch.inference_mode():
            images = torch.from_numpy(batch["image"]).to(self._device).unsqueeze(1) / PIXEL_MAX
            logits = self._network(images)
            label = logits.argmax(dim=1).cpu().numpy()
            probabilities = logits.softmax(dim=1).cpu().numpy()
        return {"label": label, "probabilities": probabilities}

    def example(self, batch_size: int) -> dict[str, NDArray[Any]]:
        return {"image": np.tile(np.array(EXAMPLE, np.float32), (batch_size, 1, 1))}
