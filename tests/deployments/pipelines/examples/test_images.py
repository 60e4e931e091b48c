import base64
import io

import numpy as np
import pytest
from PIL import Image

from deployments.errors import BadRequestError
from deployments.pipelines.examples.images import decode, example


@pytest.mark.slow
def test_raw_and_base64_dark_and_light_are_the_same():
    content = base64.b64decode(example()["image"])
    image = np.asarray(Image.open(io.BytesIO(content)))
    expected = decode(example())["image"]
    assert expected.shape == (8, 8)
    assert expected.max() == pytest.approx(15, abs=0.07)
    inverse = io.BytesIO()
    Image.fromarray(255 - image).save(inverse, "PNG")
    for same in (content, inverse.getvalue()):
        np.testing.assert_allclose(decode({"image": same})["image"], expected, atol=0.07)


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n", b"AAAA"])
def test_what_is_no_image(content):
    with pytest.raises(BadRequestError, match="PNG or JPEG"):
        decode({"image": content})
