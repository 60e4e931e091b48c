"""Bursts against the policy that allows for them: settings in which it once did harm."""

import numpy as np
import pytest

from benchmarks.inputs import GOOGLENET_P4
from benchmarks.simulated.bursty import OBJECTIVE, simulate
from policy.batching_policy import BatchingPolicy
from policy.burstiness import COUNT_WINDOW_S, DispersionMeter
from policy.table import PolicyTable, solve_table

CAPACITY_PER_S = GOOGLENET_P4.capacity_per_s


@pytest.fixture(scope="module")
def table() -> PolicyTable:
    rates_per_s = np.array([0.28, 0.32, 0.36, 0.4, 0.44, 0.48, 0.52, 0.56, 0.64, 0.8, 0.96])
    return solve_table(GOOGLENET_P4, OBJECTIVE, (rates_per_s * CAPACITY_PER_S).tolist())


def arrivals_ms(low: float, high: float, stays_s: tuple[float, float], seed: int) -> np.ndarray:
    """Draw arrivals at `low` and `high` times the capacity in turn, 100 times each."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(rng.exponential(np.tile(stays_s, 100)))
    lengths = np.diff(ends, prepend=0.0)
    counts = rng.poisson(np.tile([low, high], 100) * CAPACITY_PER_S * lengths)
    since = np.repeat(lengths, counts) * rng.random(counts.sum())
    return 1e3 * np.sort(np.repeat(ends - lengths, counts) + since)


def in_time(arrivals: np.ndarray, policy: BatchingPolicy) -> float:
    responses, _ = simulate(arrivals, lambda now_ms: policy)
    return float(np.mean(responses <= OBJECTIVE.response_time_ms))


def steady_and_bursty(table: PolicyTable, arrivals: np.ndarray) -> tuple[float, float]:
    """Return the shares in time of the policy for the mean rate and of the one for bursts."""
    rate_per_s = 1e3 * arrivals.size / arrivals[-1]
    meter = DispersionMeter(memory=1e6)
    windows = np.arange(0, arrivals[-1], 1e3 * COUNT_WINDOW_S)
    for count in np.histogram(arrivals, windows)[0].tolist():
        meter.observe(count)
    bursty = table.lookup_bursty(rate_per_s, meter.index, COUNT_WINDOW_S)
    return in_time(arrivals, table.lookup(rate_per_s)), in_time(arrivals, bursty)


def test_bursts_close_to_the_capacity_are_provided_for(table: PolicyTable) -> None:
    """Load 0.6, 50% up and down every half second: with counts per second, 96.6% were in time."""
    steady, bursty = steady_and_bursty(table, arrivals_ms(0.3, 0.9, (0.5, 0.5), seed=1))
    assert steady < 0.985
    assert bursty >= 0.99


@pytest.mark.parametrize("seed", [1, 3])
def test_rare_bursts_are_answered_no_later_than_without_the_correction(
    table: PolicyTable, seed: int
) -> None:
    """A tenth of the time at three times the mean rate: the burst's control limit did harm."""
    steady, bursty = steady_and_bursty(table, arrivals_ms(0.2333, 0.9, (4.5, 0.5), seed))
    assert bursty >= steady
