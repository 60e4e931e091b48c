"""Profiles that several tests use."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import stats

from policy.latency_quantiles import LatencyQuantiles
from policy.profile import Profile

GOOGLENET_P4_FILE = Path(__file__).parents[2] / "configs" / "profiles" / "googlenet-p4.json"

GOOGLENET_P4 = Profile.load(GOOGLENET_P4_FILE)
"""GoogLeNet on a Tesla P4, as printed by Xu, Sun, Zhou, Niu (arXiv 2301.12865)."""

_PADDED_TIMES_MS = np.array([2.0] * 4 + [2.6] * 4 + [4.0] * 8 + [7.0] * 16)
PADDED = Profile("padded", "steps", _PADDED_TIMES_MS, 10 * _PADDED_TIMES_MS)
"""A device that pads batches to 4, 8, 16 or 32, so that leaving requests behind can pay."""


def gamma_times(profile: Profile, variation: float) -> Profile:
    """Return a profile whose batch times are gamma distributed, by five quantiles."""
    percentiles = np.array([1.0, 10.0, 50.0, 90.0, 99.0])
    ratios = stats.gamma(variation**-2, scale=variation**2).ppf(percentiles / 100)
    table = np.repeat(ratios[:, None], profile.max_batch_size, axis=1)
    return replace(profile, latency_quantiles=LatencyQuantiles(percentiles, table))
