"""The image pipelines read the digits that they are made for."""

import asyncio
import base64
import io

import numpy as np
import pytest
from PIL import Image

from deployments.errors import BadRequestError
from deployments.pipelines.examples.images import decode, example
from deployments.pipelines.serving.config import load_pipeline_file
from sojourn import Pipeline
from tests.support.readme import ROOT


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.slow
def test_raw_and_base64_dark_and_light_are_the_same():
    content = base64.b64decode(example()["image"])
    image = np.asarray(Image.open(io.BytesIO(content)))
    expected = decode(example())["image"]
    assert expected.shape == (8, 8)
    assert expected.max() == pytest.approx(15, abs=0.07)
    for same in (content, png(255 - image)):
        np.testing.assert_allclose(decode({"image": same})["image"], expected, atol=0.07)


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n", b"AAAA"])
def test_what_is_no_image(content):
    with pytest.raises(BadRequestError, match="PNG or JPEG"):
        decode({"image": content})


@pytest.mark.slow
async def test_the_served_pipeline_reads_digits():
    from sklearn.datasets import load_digits

    digits = load_digits()
    chosen = range(0, 1797, 30)
    config = load_pipeline_file(ROOT / "configs/digits-pipeline.yaml").pipeline
    images = [
        png(np.kron(255 - digits.images[i] * 15.9, np.ones((4, 4))).astype(np.uint8))
        for i in chosen
    ]
    async with Pipeline(config.build()) as pipeline:
        results = await asyncio.gather(*(pipeline.predict({"image": image}) for image in images))
    labels = np.array([result["label"] for result in results])
    assert np.mean(labels == digits.target[list(chosen)]) > 0.95
