import numpy as np

from policy.profile import Profile
from policy.solvers.batch_sizes import (
    BatchSizing,
    batch_size_limits,
    efficient_sizes,
)
from tests.support.profiles import GOOGLENET_P4, PADDED


def test_a_size_is_efficient_where_one_more_request_lowers_the_throughput():
    assert efficient_sizes(PADDED) == (4, 8, 16)
    assert efficient_sizes(GOOGLENET_P4) == ()
    assert efficient_sizes(Profile("one", "size", np.ones(1))) == ()


def test_noise_of_one_percent_is_no_step():
    noise = np.random.default_rng(1).uniform(1, 1.01, 32)
    times = np.maximum.accumulate(GOOGLENET_P4.latency_ms * noise)
    assert efficient_sizes(Profile("noisy", "p4", times)) == ()


def test_the_limit_of_the_highest_throughput_comes_first():
    assert batch_size_limits(GOOGLENET_P4) == (32, 16, 8, 4, 2, 1)
    cliff = Profile("a", "cliff", np.array([1.0, 1.5, 2.0, 9.0]))
    assert batch_size_limits(cliff) == (3, 4, 2, 1)


def test_sizings_in_steps_take_the_largest_step_that_fits():
    sizing = BatchSizing.steps_up_to(16, (4, 8))
    assert sizing.sizes == (0, 1, 2, 3, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 16)
    assert sizing.control_limits() == (1, 2, 3, 4, 8, 16)
    assert not sizing.takes_all
    assert sizing.policy(8, 1.5).actions == (*8 * (0,), *8 * (8,), 16)
    assert sizing.policy(8, 1.5).max_wait_ms == 1.5
