"""The profile that the benchmarks share."""

import numpy as np

from benchmarks.inputs import GOOGLENET_P4, googlenet_p4


def test_the_profile_has_the_papers_coefficients() -> None:
    sizes = np.arange(1, 33)
    np.testing.assert_array_equal(GOOGLENET_P4.latency_ms, 1.052 + 0.3051 * sizes)
    np.testing.assert_array_equal(GOOGLENET_P4.energy_mj, 19.60 + 19.90 * sizes)


def test_larger_batches_continue_the_straight_lines() -> None:
    larger = googlenet_p4(64)
    assert larger.max_batch_size == 64
    np.testing.assert_array_equal(larger.latency_ms[:32], GOOGLENET_P4.latency_ms)
    np.testing.assert_allclose(np.diff(larger.latency_ms), 0.3051)
