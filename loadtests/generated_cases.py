"""Generated requests for any model: from its signature, or from a folder of images."""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from policy.errors import InvalidInputError

_INTEGERS = 100
#: Maximum length of a generated dimension, and its length for an image.
_LONGEST = 16
_SIDE = 8
_WORDS = (
    *("the", "a", "quick", "slow", "brown", "fox", "dog"),
    *("jumps", "sleeps", "over", "under", "lazy", "bright", "day"),
)
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


def random_cases(
    inputs: Sequence[Mapping[str, Any]], number: int, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Generate requests of one row with random values and unknown answers.

    Fractions are from 0 to 1, whole numbers from 0 to 99 (unsigned 8 bits: to 255), and BYTES are
    some English words. A variable dimension, other than the first, is from 1 to 16, or to the
    model's maximum.

    Parameters
    ----------
    inputs : sequence of mapping
        The model's inputs as in its metadata: name, datatype, shape.

    Yields
    ------
    dict
        A request, for `loadtests.answers.write_cases`.
    """
    random = np.random.default_rng(seed)
    for _ in range(number):
        yield {"inputs": [_random_tensor(random, spec) for spec in inputs]}


def image_cases(inputs: Sequence[Mapping[str, Any]], folder: Path) -> Iterator[dict[str, Any]]:
    """Generate one request per image file of a folder, in the order of their names.

    An input of BYTES takes the file as it is. A numeric input takes the pixels, resized to its
    shape: (height, width) or (1, height, width) in gray, (3, height, width) or (height, width, 3)
    in color; fractions are from 0 to 1, whole numbers from 0 to 255.

    Parameters
    ----------
    inputs : sequence of mapping
        The model's inputs as in its metadata; there must be one.

    Yields
    ------
    dict
        A request, for `loadtests.answers.write_cases`.

    Raises
    ------
    InvalidInputError
        The folder has no images, Pillow is missing, or the input does not take an image.
    """
    if len(inputs) != 1:
        raise InvalidInputError(f"--images: the model must have one input, not {len(inputs)}")
    (spec,) = inputs
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in _IMAGES)
    except OSError as error:
        raise InvalidInputError(f"--images: {folder}: {error.strerror}") from None
    if not paths:
        raise InvalidInputError(f"--images: {folder} has no files {', '.join(_IMAGES)}")
    for path in paths:
        yield {"inputs": [_image_tensor(spec, path)]}


def _random_tensor(random: np.random.Generator, spec: Mapping[str, Any]) -> dict[str, Any]:
    datatype = spec["datatype"]
    longest = min(_LONGEST, spec.get("parameters", {}).get("max_dim", _LONGEST))
    shape = _one_row(spec["shape"], lambda: int(random.integers(1, longest + 1)))
    size = int(np.prod(shape))
    data: list[Any]
    if datatype == "BYTES":
        data = [" ".join(random.choice(_WORDS, random.integers(8, 24))) for _ in range(size)]
    elif datatype == "BOOL":
        data = (random.random(size) < 0.5).tolist()
    elif datatype.startswith(("INT", "UINT")):
        data = random.integers(256 if datatype == "UINT8" else _INTEGERS, size=size).tolist()
    else:
        # Few binary digits, which FP16 can hold.
        data = (random.integers(1025, size=size) / 1024).tolist()
    return {"name": spec["name"], "datatype": datatype, "shape": shape, "data": data}


def _one_row(shape: Sequence[int], length_of: Callable[[], int]) -> list[int]:
    """Return the shape of one row, with `length_of()` for each variable dimension."""
    first, *rest = shape
    return [
        1 if first < 0 else first,
        *(length_of() if length < 0 else length for length in rest),
    ]


def _image_tensor(spec: Mapping[str, Any], path: Path) -> dict[str, Any]:
    shape = _one_row(spec["shape"], lambda: _SIDE)
    tensor = {"name": spec["name"], "datatype": spec["datatype"], "shape": shape}
    if spec["datatype"] == "BYTES":
        if np.prod(shape) != 1:
            raise InvalidInputError(f"--images: input {spec['name']}: must be one value per row")
        return {**tensor, "base64": [base64.b64encode(path.read_bytes()).decode()]}
    return {**tensor, "data": _pixels(spec, shape[1:], path)}


def _pixels(spec: Mapping[str, Any], shape: Sequence[int], path: Path) -> list[float]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise InvalidInputError("--images needs Pillow: pip install 'sojourn[images]'") from None
    channels_first = len(shape) == 3 and shape[0] in (1, 3)
    if channels_first:
        channels, height, width = shape
    elif len(shape) == 3 and shape[2] in (1, 3):
        height, width, channels = shape
    elif len(shape) == 2:
        (height, width), channels = shape, 1
    else:
        raise InvalidInputError(
            f"--images: input {spec['name']} of shape {list(shape)} does not take an image; it "
            "must be (height, width), (1 or 3, height, width) or (height, width, 1 or 3)"
        )
    try:
        with Image.open(path) as image:
            resized = image.convert("RGB" if channels == 3 else "L").resize((width, height))
    except (OSError, UnidentifiedImageError):
        raise InvalidInputError(f"--images: {path} is not an image") from None
    pixels = np.asarray(resized).reshape(height, width, channels)
    if channels_first:
        pixels = pixels.transpose(2, 0, 1)
    if spec["datatype"].startswith("FP"):
        return np.round(pixels / 255, 4).ravel().tolist()
    return pixels.ravel().tolist()
