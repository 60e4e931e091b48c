"""The example of the digits model."""

import numpy as np

from deployments.models.digits import Digits
from loadtests.digits import held_out


def test_the_example_is_an_image_that_was_held_out() -> None:
    images, labels = held_out()
    model = Digits()
    model.load("cpu")
    example = model.example(2)
    np.testing.assert_array_equal(example["image"], np.stack([images[0]] * 2))
    assert model.forward(example)["label"].tolist() == [labels[0]] * 2
