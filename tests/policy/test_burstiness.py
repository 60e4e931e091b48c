import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.batcher.core import BatcherCore
from policy.batcher.limits import Limits
from policy.batcher.requests import FixedPolicy, Request
from policy.burstiness import COUNT_WINDOW_S, DispersionMeter, burst_rate_per_s
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.tables.solving import solve_table
from tests.support.batching.batcher_core import Run
from tests.support.batching.switching_arrivals import SwitchingArrivals
from tests.support.profiles import GOOGLENET_P4

CAPACITY = GOOGLENET_P4.capacity_per_s
SLA_TABLE = solve_table(
    GOOGLENET_P4,
    ServiceLevelObjective(20, 99),
    [load * CAPACITY for load in (0.28, 0.32, 0.44, 0.48, 0.6, 0.64, 0.72, 0.8, 0.84, 0.96)],
)


@settings(derandomize=True)
@given(counts=st.lists(st.integers(0, 50), min_size=2, max_size=40).filter(any))
def test_with_a_long_memory_it_is_the_textbook_index(counts):
    meter = DispersionMeter(memory=1e9)
    for count in counts:
        meter.observe(count)
    assert meter.mean == pytest.approx(np.mean(counts))
    assert meter.index == pytest.approx(np.var(counts, ddof=1) / np.mean(counts), abs=1e-5)


def test_old_counts_are_forgotten():
    meter = DispersionMeter(memory=10)
    for count in [0, 100] * 50 + [50] * 200:
        meter.observe(count)
    assert meter.mean == pytest.approx(50, abs=1e-3)
    assert meter.index < 0.01


def test_before_anything_is_known_arrivals_are_poisson():
    meter = DispersionMeter()
    assert (meter.mean, meter.index) == (0, 1)
    for _ in range(3):
        meter.observe(0)
    assert meter.index == 1


@pytest.mark.parametrize("swing", [0.2, 0.8])
def test_the_rate_of_bursts_of_five_windows_is_never_underestimated(swing):
    """Nor overestimated by more than a fifth of the swing."""
    process = SwitchingArrivals((1000 * (1 - swing), 1000 * (1 + swing)), (0.5, 0.5))
    meter = DispersionMeter(memory=2000)
    for count in process.counts(5000, COUNT_WINDOW_S, seed=1):
        meter.observe(count)
    mean = meter.mean / COUNT_WINDOW_S
    found = (burst_rate_per_s(mean, meter.index, COUNT_WINDOW_S) - mean) / 1000
    assert swing <= found <= 1.2 * swing


@settings(derandomize=True)
@given(rate=st.floats(0, 1e5), index=st.floats(0, 1e4), window_s=st.floats(1e-3, 60))
def test_bursts_are_between_the_mean_and_twice_the_mean(rate, index, window_s):
    assert rate <= burst_rate_per_s(rate, index, window_s) <= 2 * rate
    assert burst_rate_per_s(rate, 1.0, window_s) == rate


def test_values_out_of_range_are_refused():
    with pytest.raises(InvalidInputError, match="memory in windows: must be at least 2"):
        DispersionMeter(1)
    with pytest.raises(InvalidInputError, match="window_s: must be above 0"):
        burst_rate_per_s(1, 1, 0)
    for rate, index in [(-1, 1), (1, math.nan)]:
        with pytest.raises(InvalidInputError, match="must be at least 0"):
            burst_rate_per_s(rate, index, 1)


@pytest.mark.slow
def test_bursts_close_to_the_capacity_are_provided_for():
    """Load 0.6, 50% up and down every half second: windows of 1 s do not show it."""
    process = SwitchingArrivals((0.3 * CAPACITY, 0.9 * CAPACITY), (0.5, 0.5))
    limits = Limits(1e6, 10**6, GOOGLENET_P4.latency_ms.tolist())

    def share_in_time(policy):
        run = Run(BatcherCore(FixedPolicy(policy), limits))
        run.batch_s = lambda batch: 1e-3 * limits.batch_latency_ms(batch.size)
        run.coming += [Request(at_s, 1) for at_s in process.times_s(40, seed=2).tolist()]
        run.run()
        return np.mean(np.array(run.responses_s) <= 0.02)

    def for_bursts(window_s):
        meter = DispersionMeter(memory=2000)
        for count in process.counts(int(500 / window_s), window_s, seed=1):
            meter.observe(count)
        return SLA_TABLE.lookup_bursty(0.6 * CAPACITY, meter.index, window_s)

    assert share_in_time(SLA_TABLE.lookup(0.6 * CAPACITY)) < 0.985
    assert share_in_time(for_bursts(COUNT_WINDOW_S)) >= 0.99
    assert share_in_time(for_bursts(1.0)) < 0.99
