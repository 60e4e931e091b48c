"""Refit a profile's latency to the batches that were run."""

import math
from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from policy.latency_quantiles import LatencyQuantiles
from policy.profile import Profile

FloatArray = NDArray[np.float64]

#: The largest quantile, relative to the median, that a refit makes: beyond it are stalls of the
#: machine, and distributions of such width take long to evaluate.
MAX_RATIO = 5.0
#: Percentiles that tell how the time of batches varies.
MEASURED_PERCENTILES = (5.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True)
class _SizeGroup:
    """The latest batches of neighboring sizes: times over the profile's medians, ascending."""

    size: float
    ratios: FloatArray

    @property
    def log_factor(self) -> float:
        return math.log(float(np.median(self.ratios)))

    def is_off(self, tolerance: float) -> bool:
        """Return whether the median is off by more than `tolerance`, and not by chance.

        The median of n values lies with 95% between their order statistics at n/2 ± √n.
        """
        count = self.ratios.size
        rank = max(0, int(count / 2 - math.sqrt(count)))
        low, high = self.ratios[rank], self.ratios[count - 1 - rank]
        return bool(low > 1 + tolerance or high < 1 / (1 + tolerance))


class LatencyRefit:
    """Detect that a profile's latency is wrong, and refit it to the latest batches.

    Batch sizes with few recent batches are judged together with their neighbors: a busy device
    runs a hundred sizes, each of them seldom. Sizes without recent batches are scaled by the same
    factor as their neighbors, so a device that became twice as slow is taken to be so at every
    size. The profile is refitted only if some group of sizes is off by more than `TOLERANCE` in two
    successive calls of `revise`, by more than chance, so noise changes nothing.
    """

    #: Batches remembered, and batches needed before a group of sizes is judged.
    MAX_BATCHES, MIN_BATCHES = 1024, 8
    #: More groups would make steps of noise, for which batch sizes would be chosen.
    MAX_GROUPS = 12
    #: Relative error of the latency that is tolerated.
    TOLERANCE = 0.25
    #: Batches that are needed to say how their time varies.
    MIN_VARYING = 200

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._recent: deque[tuple[int, float]] = deque(maxlen=self.MAX_BATCHES)
        self._new_batches = 0
        self._was_off = False

    def observe(self, batch_size: int, duration_ms: float) -> None:
        """Record a batch; sizes beyond the profile are ignored."""
        if 1 <= batch_size <= self.profile.max_batch_size and duration_ms > 0:
            self._recent.append((batch_size, duration_ms))
            self._new_batches += 1

    def revise(self) -> Profile | None:
        """Return the refitted profile if the old one is wrong, else None.

        Call it at intervals of some seconds: two calls in a row must find the profile wrong, each
        with new batches.
        """
        if self._new_batches < self.MIN_BATCHES:
            return None
        self._new_batches = 0
        sizes = np.array([size for size, _ in self._recent])
        durations_ms = np.array([duration_ms for _, duration_ms in self._recent])
        groups = self._groups(sizes, durations_ms / _medians_ms(self.profile)[sizes - 1])
        is_off = any(group.is_off(self.TOLERANCE) for group in groups)
        if not is_off or not self._was_off:
            self._was_off = is_off
            return None
        self._was_off = False
        self.profile = _with_latency(self.profile, _refit_ms(self.profile.latency_ms, groups))
        if self.profile.latency_quantiles is not None:
            quantiles = self.measured_quantiles() or self.profile.latency_quantiles
            self.profile = replace(self.profile, latency_quantiles=quantiles)
        return self.profile

    def measured_quantiles(self) -> LatencyQuantiles | None:
        """Return how the time of the latest batches varies; None with too few batches.

        The ratios are to the profile's latency, the same for every batch size.
        """
        if len(self._recent) < self.MIN_VARYING:
            return None
        sizes, durations_ms = np.array(self._recent).T
        ratios = durations_ms / self.profile.latency_ms[sizes.astype(int) - 1]
        found = np.percentile(ratios, MEASURED_PERCENTILES)
        found = np.minimum(found, MAX_RATIO * np.median(ratios))
        return LatencyQuantiles(
            np.array(MEASURED_PERCENTILES),
            np.repeat(found[:, None], self.profile.max_batch_size, axis=1),
        )

    def _groups(self, sizes: NDArray[np.int64], ratios: FloatArray) -> list[_SizeGroup]:
        """Divide the batches into at most `MAX_GROUPS` groups of neighboring sizes.

        Each has `MIN_BATCHES` or more, if there are as many in all.
        """
        least = max(self.MIN_BATCHES, sizes.size // self.MAX_GROUPS)
        order = np.argsort(sizes, kind="stable")
        sizes, ratios = sizes[order], ratios[order]
        # All batches of a size are in one group: a group ends where the size changes.
        ends = [*(np.flatnonzero(np.diff(sizes)) + 1).tolist(), sizes.size]
        edges = [0]
        for end in ends:
            if end - edges[-1] >= least and sizes.size - end >= least:
                edges.append(end)
        edges.append(sizes.size)
        return [
            _SizeGroup(float(sizes[begin:end].mean()), np.sort(ratios[begin:end]))
            for begin, end in pairwise(edges)
        ]


def _medians_ms(profile: Profile) -> FloatArray:
    """Return the median time of a batch by batch size."""
    quantiles = profile.latency_quantiles
    if quantiles is None:
        return profile.latency_ms
    ratios = [np.interp(50.0, quantiles.percentiles, by_size) for by_size in quantiles.ratios.T]
    return np.asarray(profile.latency_ms * ratios)


def _refit_ms(latency_ms: FloatArray, groups: list[_SizeGroup]) -> FloatArray:
    """Return latencies scaled to the groups' medians, by the neighbors' factors between them.

    The logarithm of the factor is interpolated linearly; isotonic regression then restores a
    latency that never decreases with the batch size.
    """
    every_size = np.arange(1, latency_ms.size + 1)
    log_factors = np.interp(
        every_size, [group.size for group in groups], [group.log_factor for group in groups]
    )
    scaled_ms = latency_ms * np.exp(log_factors)
    from scipy.optimize import isotonic_regression  # takes longer to import than most commands run

    return np.asarray(isotonic_regression(scaled_ms).x, dtype=np.float64)


def _with_latency(profile: Profile, latency_ms: FloatArray) -> Profile:
    """Return `profile` with another latency; what a batch takes longer costs the idle power."""
    energy_mj = profile.energy_mj
    if energy_mj is not None and profile.idle_power_w is not None:
        longer_ms = np.maximum(latency_ms - profile.latency_ms, 0.0)
        energy_mj = np.maximum.accumulate(energy_mj + profile.idle_power_w * longer_ms)
    return replace(profile, latency_ms=latency_ms, energy_mj=energy_mj)
