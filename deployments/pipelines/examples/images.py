"""Handwritten digits in image files: decode and resize, classify, label.

``configs/digits-pipeline.yaml`` serves them, and ``configs/ensemble-pipeline.yaml`` uses two
models. They need the extra ``images``.
"""

import base64
import binascii
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from deployments.errors import BadRequestError

#: The input of the digit models: images of 8 × 8 pixels from 0 to 16.
_SIDE, _PIXEL_MAX = 8, 16.0
_PNG, _JPEG = b"\x89PNG", b"\xff\xd8"
#: Larger images are refused before they are decoded.
_MAX_PIXELS = 4096 * 4096


def decode(item: Mapping[str, bytes]) -> dict[str, Any]:
    """Decode an image of a dark digit on a light ground, or the reverse, and resize it.

    Parameters
    ----------
    item : mapping
        ``image``: the bytes of an image file, or their base64 encoding.

    Returns
    -------
    dict
        ``image``: float32 of shape (8, 8), 0 for the ground to 16.

    Raises
    ------
    BadRequestError
        The bytes are no image, or one that is too large.
    """
    content = bytes(item["image"])
    try:
        if not content.startswith((_PNG, _JPEG)):
            content = base64.b64decode(content, validate=True)
        with Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise BadRequestError(
                    f"the image has {image.width} x {image.height} pixels, at most 4096 x 4096 "
                    "are allowed"
                )
            gray = image.convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    except (binascii.Error, UnidentifiedImageError, OSError, ValueError) as error:
        raise BadRequestError("the image must be a PNG or JPEG file, or its base64") from error
    pixels = np.asarray(gray, np.float32) / 255
    if np.median(pixels) > 0.5:
        pixels = 1 - pixels  # the background is light
    return {"image": _PIXEL_MAX * pixels}


def label(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the label, and the probability that it is right."""
    return {"label": item["label"], "probability": np.max(item["probabilities"])}


def mean(results: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the results of several models: the mean of their probabilities."""
    probabilities = np.mean([result["probabilities"] for result in results], axis=0)
    return {"label": np.int64(np.argmax(probabilities)), "probabilities": probabilities}


def example() -> dict[str, bytes]:
    """Return the image of a 3, as the base64 of a PNG file."""
    from deployments.models.digits import (
        EXAMPLE,
    )  # it loads torch, which the stages here do not need

    pixels = np.kron(np.array(EXAMPLE), np.ones((5, 5))) * (255 / _PIXEL_MAX)
    file = io.BytesIO()
    Image.fromarray(255 - pixels.astype(np.uint8)).save(file, "PNG")
    return {"image": base64.b64encode(file.getvalue())}


class Templates:
    """A cheap digit model: the most similar of ten mean images.

    `sharpness` scales how strongly the probabilities prefer similar images.
    """

    def __init__(self, sharpness: float = 8.0) -> None:
        self._sharpness = sharpness
        self._templates = _mean_images()

    def predict(self, items: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the label and the probabilities of each item."""
        images = np.stack([np.ravel(item["image"]) for item in items])
        images = images / np.maximum(np.linalg.norm(images, axis=1, keepdims=True), 1e-9)
        scores = np.exp(self._sharpness * images @ self._templates.T)
        probabilities = scores / scores.sum(axis=1, keepdims=True)
        return [{"label": np.int64(np.argmax(row)), "probabilities": row} for row in probabilities]


def _mean_images() -> Any:
    """Return the mean image of each digit, of length 1; shape (10, 64)."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    means = np.stack([digits.data[digits.target == digit].mean(axis=0) for digit in range(10)])
    return means / np.linalg.norm(means, axis=1, keepdims=True)
