"""Run this with pytest."""

import numpy as np
from model import Classifier


def test_a_row_has_the_same_answer_alone_and_in_a_batch() -> None:
    model = Classifier()
    model.load("cpu")
    features = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    together = model.forward({"features": features})
    for row in range(8):
        alone = model.forward({"features": features[row : row + 1]})
        np.testing.assert_allclose(alone["scores"][0], together["scores"][row], atol=1e-5)
        assert alone["label"][0] == together["label"][row]
