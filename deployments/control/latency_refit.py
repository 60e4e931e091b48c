"""Refit a profile's latency to the batches that were run."""

import math
from collections import deque
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from policy.profile import Profile

FloatArray = NDArray[np.float64]


class LatencyRefit:
    """Detect that a profile's latency is wrong, and refit it to the latest batches.

    Each batch size is represented by the median of its latest batches. Sizes without recent batches
    are scaled by the same factor as their neighbours, so a device that became twice as slow is
    taken to be so at every size. The profile is refitted only if some size in use is off by more
    than `TOLERANCE` in two successive calls of `revise`, so noise changes nothing.

    Parameters
    ----------
    profile : Profile
        The initial profile.

    Attributes
    ----------
    profile : Profile
        The profile now believed.
    """

    #: Batches remembered per size, and batches needed before a size is judged.
    MAX_BATCHES, MIN_BATCHES = 64, 8
    #: Relative error of the latency that is tolerated.
    TOLERANCE = 0.25

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._recent_ms: dict[int, deque[float]] = {}
        self._was_off = False

    def observe(self, batch_size: int, duration_ms: float) -> None:
        """Record a batch; sizes beyond the profile are ignored."""
        if 1 <= batch_size <= self.profile.max_batch_size:
            recent = self._recent_ms.setdefault(batch_size, deque(maxlen=self.MAX_BATCHES))
            recent.append(duration_ms)

    def revise(self) -> Profile | None:
        """Return the refitted profile if the old one is wrong, else None.

        Call it at intervals of several seconds: two calls in a row must find the profile wrong.
        """
        medians_ms = {
            size: float(np.median(recent))
            for size, recent in self._recent_ms.items()
            if len(recent) >= self.MIN_BATCHES
        }
        latency_ms = self.profile.latency_ms
        is_off = any(
            abs(math.log(median_ms / latency_ms[size - 1])) > math.log1p(self.TOLERANCE)
            for size, median_ms in medians_ms.items()
        )
        if not is_off or not self._was_off:
            self._was_off = is_off
            return None
        self._was_off = False
        self.profile = replace(self.profile, latency_ms=_refit_ms(latency_ms, medians_ms))
        # Records of the other sizes are too old: they are of the device as it was.
        self._recent_ms = {size: self._recent_ms[size] for size in medians_ms}
        return self.profile


def _refit_ms(latency_ms: FloatArray, medians_ms: dict[int, float]) -> FloatArray:
    """Return latencies scaled to the medians, by the neighbours' factors at the other sizes.

    The logarithm of the factor is interpolated linearly; isotonic regression then restores a
    latency that never decreases with the batch size.
    """
    sizes = np.array(sorted(medians_ms))
    log_factors = np.log([medians_ms[size] / latency_ms[size - 1] for size in sizes])
    every_size = np.arange(1, latency_ms.size + 1)
    scaled_ms = latency_ms * np.exp(np.interp(every_size, sizes, log_factors))
    return np.asarray(isotonic_regression(scaled_ms).x, dtype=np.float64)
