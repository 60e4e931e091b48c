import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.dispatcher import Dispatcher
from scipy import stats

from autoscaler.simulator import arrivals
from autoscaler.simulator.engines import kernel
from autoscaler.simulator.engines.compiled import rules_of
from autoscaler.simulator.engines.interface import bin_edges_ms
from autoscaler.simulator.engines.kernel import BINS, bin_of, draw, draw_ratio
from autoscaler.simulator.scenario import Scenario
from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

EDGES = bin_edges_ms()
#: What is counted, or chosen from a list; all else is measured.
WHOLE = {"has_loop": "bool"} | dict.fromkeys(
    ("max_queue_rows", "concurrency", "retries", "routing"), "int"
)


@pytest.mark.parametrize("module", [arrivals, kernel])
def test_compiled_functions_call_none_of_another_file(module):
    # Numba reuses cached code until the file of the function itself changes.
    functions = {
        name: value for name, value in vars(module).items() if isinstance(value, Dispatcher)
    }
    assert functions
    for name, function in functions.items():
        assert inspect.getsourcefile(function.py_func) == module.__file__, name


def test_the_generator_is_splitmix64():
    # The first two outputs for the seed 1234567, as published with the reference code; `draw` uses
    # the upper half of each.
    state = np.array([1234567], np.uint64)
    assert draw(state, 2**32) == 6457827717110365317 >> 32
    assert draw(state, 2**32) == 3203168211198807973 >> 32


def test_batch_times_follow_their_distribution():
    ranks = np.array([0.2, 0.5, 1.0])
    ratios = np.array([[9.0, 9.0, 9.0], [0.5, 1.0, 2.0]])
    streams = np.array([7, 3], np.uint64)
    drawn = [draw_ratio(ranks, ratios, 2, streams, 1) for _ in range(5000)]
    counts = [drawn.count(ratio) for ratio in (0.5, 1.0, 2.0)]
    assert sum(counts) == len(drawn)
    assert stats.chisquare(counts, 5000 * np.array([0.2, 0.3, 0.5])).pvalue > 0.01
    assert streams[0] == 7  # the other stream is untouched


@pytest.mark.parametrize("number", [int, float])
def test_whole_numbers_do_not_have_the_kernel_compiled_again(number):
    """An SLA of 100 ms, and not 100.0, once cost 20 s."""
    latency_ms = np.array([2.0, 3.0])
    scenario = Scenario(
        Profile("m", "d", latency_ms, 10 + latency_ms, idle_power_w=number(1)),
        ServiceLevelObjective(number(100), number(99)),
        np.array([1, 2, 3]),
        batching=BatchingPolicy.from_control_limit(1, 2, None),
    )
    rules = rules_of(scenario, scenario.service)
    scalars = {name: value for name, value in rules._asdict().items() if np.ndim(value) == 0}
    kinds = {name: type(value).__name__ for name, value in scalars.items()}
    assert kinds == {**dict.fromkeys(scalars, "float"), **WHOLE}


@settings(max_examples=200)
@given(st.floats(EDGES[0], EDGES[-1], exclude_max=True) | st.sampled_from(EDGES[:-1].tolist()))
def test_a_time_falls_between_the_edges_of_its_bin(response_ms):
    index = bin_of(response_ms)
    assert EDGES[index] <= response_ms < EDGES[index + 1] <= 1.005 * EDGES[index]


def test_a_time_out_of_range_falls_into_an_end_bin():
    assert [bin_of(ms) for ms in (0.0, 1e-6, 1e12)] == [0, 0, BINS - 1]
