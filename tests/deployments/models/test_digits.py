import numpy as np
import pytest
import torch

from deployments.models.loading import load_model
from loadtests import digits
from policy.errors import InvalidInputError


@pytest.fixture(scope="module")
def model():
    return load_model("digits", {}, "cpu")


def test_at_least_97_percent_of_the_held_out_digits_are_right(model):
    images, labels = digits.held_out()
    assert np.mean(model.forward({"image": images})["label"] == labels) >= 0.97


def test_the_example_is_an_image_that_was_held_out(model):
    images, labels = digits.held_out()
    example = model.example(2)
    np.testing.assert_array_equal(example["image"], np.stack([images[0]] * 2))
    assert model.forward(example)["label"].tolist() == [labels[0]] * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_without_a_gpu_is_rejected_in_one_line():
    with pytest.raises(InvalidInputError, match="torch finds no GPU") as caught:
        load_model("digits", {}, "cuda")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_and_cpu_agree(model):
    images = digits.held_out()[0]
    on_gpu = load_model("digits", {}, "cuda").forward({"image": images})
    on_cpu = model.forward({"image": images})
    np.testing.assert_allclose(on_gpu["probabilities"], on_cpu["probabilities"], atol=1e-2)
