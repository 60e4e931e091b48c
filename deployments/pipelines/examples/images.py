"""Handwritten digits in image files, for ``configs/digits-pipeline.yaml`` (extra ``images``)."""

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

    The bytes are those of an image file, or their base64. 0 is the ground, 16 the darkest.
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


def example() -> dict[str, bytes]:
    """Return the image of a 3, as the base64 of a PNG file."""
    from deployments.models.digits import EXAMPLE  # it loads torch

    pixels = np.kron(np.array(EXAMPLE), np.ones((5, 5))) * (255 / _PIXEL_MAX)
    file = io.BytesIO()
    Image.fromarray(255 - pixels.astype(np.uint8)).save(file, "PNG")
    return {"image": base64.b64encode(file.getvalue())}
