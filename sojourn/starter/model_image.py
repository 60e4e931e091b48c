"""Your model of images: clients send image files, raw or as base64 in JSON."""

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from sojourn import BadRequestError, Model, TensorSpec


def pixels(content: bytes) -> NDArray[np.float32]:
    """Return the pixels of a file, or of its base64, of shape (3, 32, 32)."""
    try:
        content = base64.b64decode(content) if content.isascii() else content
        image = Image.open(io.BytesIO(content)).convert("RGB").resize((32, 32))
    except (OSError, ValueError):
        raise BadRequestError("image: neither an image file nor its base64") from None
    return np.asarray(image, np.float32).transpose(2, 0, 1) / np.float32(255)


class Classifier(Model):
    """A small network with random weights, to be replaced by yours."""

    inputs = (TensorSpec("image", "BYTES"),)
    outputs = (TensorSpec("label", "INT64"), TensorSpec("scores", "FP32", (3,)))

    def load(self, device: str) -> None:
        torch.manual_seed(0)
        self._device = device
        self._network = nn.Sequential(nn.Flatten(), nn.Linear(3072, 3)).to(device).eval()

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        images = torch.from_numpy(np.stack([pixels(content) for content in batch["image"]]))
        with torch.inference_mode():
            scores = self._network(images.to(self._device)).softmax(-1).cpu().numpy()
        return {"label": scores.argmax(axis=1), "scores": scores}

    def example(self, batch_size: int) -> dict[str, NDArray[Any]]:
        """Return images as large as those that you expect: batches are profiled with them."""
        file = io.BytesIO()
        Image.effect_noise((256, 256), 64).save(file, "PNG")
        return {"image": np.array([file.getvalue()] * batch_size, object)}
