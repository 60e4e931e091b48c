"""Real input for the digits model: scikit-learn's 1,797 handwritten digits, split once for all.

Every fourth image (indices 3, 7, 11, …; 449 of them) is held out; the model has never seen it. The
other 1,348 are for training. The rule needs no random numbers, so the split is the same everywhere.
Images are 8 × 8, pixels 0 to 16, by 13 writers, each of whom is on both sides.
"""

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Images = NDArray[np.float32]
Labels = NDArray[np.int64]


def train() -> tuple[Images, Labels]:
    """Give the images, shape (1348, 8, 8), and labels, shape (1348,), to train on."""
    images, labels, held = _load()
    return images[~held], labels[~held]


def held_out() -> tuple[Images, Labels]:
    """Give the images, shape (449, 8, 8), and labels, shape (449,), to test with."""
    images, labels, held = _load()
    return images[held], labels[held]


def _load() -> tuple[Images, Labels, NDArray[np.bool_]]:
    digits = load_digits()
    labels = digits.target.astype(np.int64)
    return digits.images.astype(np.float32), labels, np.arange(labels.size) % 4 == 3
