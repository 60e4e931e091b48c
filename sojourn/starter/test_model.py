"""Run this with pytest."""

import numpy as np
from model import Classifier


def test_a_row_has_the_same_answer_alone_and_in_a_batch() -> None:
    model = Classifier()
    model.load("cpu")
    random = np.random.default_rng(0)
    batch = {
        name: random.normal(size=rows.shape).astype(rows.dtype) if rows.dtype.kind == "f" else rows
        for name, rows in model.example(8).items()
    }
    together = model.forward(batch)
    for row in range(8):
        alone = model.forward({name: rows[row : row + 1] for name, rows in batch.items()})
        for name, rows in together.items():
            if rows.dtype.kind == "f":
                np.testing.assert_allclose(alone[name][0], rows[row], atol=1e-5)
            else:
                assert alone[name][0] == rows[row]
