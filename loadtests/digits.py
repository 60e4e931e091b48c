"""Data of the digits model: scikit-learn's 1,797 handwritten digits, with a fixed split.

Every fourth image (indices 3, 7, 11, …; 449 images) is held out; the other 1,348 are for training.
The split uses no random numbers, so it is the same everywhere. Images are 8 × 8 with pixels from 0
to 16. The digits are by 13 writers, and both parts contain digits by every writer.
"""

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Images = NDArray[np.float32]
Labels = NDArray[np.int64]


def train() -> tuple[Images, Labels]:
    """Return the training images, shape (1348, 8, 8), and their labels, shape (1348,)."""
    images, labels, held = _load()
    return images[~held], labels[~held]


def held_out() -> tuple[Images, Labels]:
    """Return the held-out images, shape (449, 8, 8), and their labels, shape (449,)."""
    images, labels, held = _load()
    return images[held], labels[held]


def _load() -> tuple[Images, Labels, NDArray[np.bool_]]:
    digits = load_digits()
    labels = digits.target.astype(np.int64)
    return digits.images.astype(np.float32), labels, np.arange(labels.size) % 4 == 3
