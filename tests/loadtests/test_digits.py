import numpy as np
from sklearn.datasets import load_digits

from loadtests import digits


def test_every_fourth_image_is_held_out_and_the_others_are_for_training():
    everything = load_digits().images.astype(np.float32)
    (train, train_labels), (held_out, held_out_labels) = digits.train(), digits.held_out()
    assert (len(train), len(held_out)) == (1348, 449) == (len(train_labels), len(held_out_labels))
    np.testing.assert_array_equal(held_out, everything[3::4])
    np.testing.assert_array_equal(np.delete(everything, slice(3, None, 4), axis=0), train)
