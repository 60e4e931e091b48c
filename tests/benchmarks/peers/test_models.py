"""The models that all servers host."""

import numpy as np
import pytest

from benchmarks.peers.models import HOSTED


def test_a_value_below_0_fails_its_batch_and_no_other() -> None:
    device = HOSTED["emulated"].load()
    with pytest.raises(ValueError, match="below 0"):
        device.forward({"input": np.array([[1], [-2]], np.float32)})
    np.testing.assert_array_equal(
        device.forward({"input": np.array([[1]], np.float32)})["output"], [[1]]
    )
