"""Counts of arrivals whose rate switches, by window."""

import numpy as np

from policy.mmpp import Mmpp


def mmpp_counts(process: Mmpp, windows: int, window_s: float, seed: int) -> list[int]:
    """Draw the counts in successive windows; the rate may switch within them."""
    rng = np.random.default_rng(seed)
    cycles = int(1.5 * windows * window_s / sum(process.stays_s)) + 20
    stays_s = rng.exponential(np.tile(process.stays_s, cycles))
    switches_s = np.append(0.0, np.cumsum(stays_s))
    expected = np.append(0.0, np.cumsum(np.tile(process.rates_per_s, cycles) * stays_s))
    ends_s = window_s * np.arange(windows + 1)
    assert switches_s[-1] > ends_s[-1]
    counts = rng.poisson(np.diff(np.interp(ends_s, switches_s, expected)))
    return [int(count) for count in counts]
