"""What a running replica learns: how long its batches really take, and whether the SLA holds.

Both are plain arithmetic on what is observed, without a clock of their own.
"""

import math
from collections import deque
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from policy.profile import Profile

FloatArray = NDArray[np.float64]


class LatencyRefit:
    """Refits a profile's latency from the batches that were run.

    Of each batch size the median of its latest batches counts. Sizes that were not seen lately are
    moved by the same factor as their neighbours, so a device that is twice as slow is believed to
    be so at every size. A new profile is given only when the old one is off by more than
    `TOLERANCE` at some size that is in use, twice in a row: noise changes nothing.

    Parameters
    ----------
    profile : Profile
        What is believed at first.
    """

    #: Batches per size that are remembered, and that it takes to believe in a change.
    MEMORY, ENOUGH = 64, 8
    #: Relative error of the profile below which it stays.
    TOLERANCE = 0.25

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._recent_ms: dict[int, deque[float]] = {}
        self._suspicious = False

    def observe(self, batch_size: int, duration_ms: float) -> None:
        """Take note of a batch."""
        if 1 <= batch_size <= self.profile.max_batch_size:
            recent = self._recent_ms.setdefault(batch_size, deque(maxlen=self.MEMORY))
            recent.append(duration_ms)

    def revise(self) -> Profile | None:
        """Give a new profile where the old one has become wrong; ask every ten seconds or so."""
        medians_ms = {
            size: float(np.median(recent))
            for size, recent in self._recent_ms.items()
            if len(recent) >= self.ENOUGH
        }
        believed_ms = self.profile.latency_ms
        off = [
            size
            for size, median_ms in medians_ms.items()
            if abs(math.log(median_ms / believed_ms[size - 1])) > math.log1p(self.TOLERANCE)
        ]
        if not off or not self._suspicious:
            self._suspicious = bool(off)
            return None
        self._suspicious = False
        self.profile = replace(self.profile, latency_ms=_refit(believed_ms, medians_ms))
        # What is remembered of sizes that are rare now is of the device as it was.
        self._recent_ms = {size: self._recent_ms[size] for size in medians_ms}
        return self.profile


def _refit(believed_ms: FloatArray, medians_ms: dict[int, float]) -> FloatArray:
    """Move the table to the medians, in between and beyond by the neighbours' factor."""
    sizes = np.array(sorted(medians_ms))
    factors = np.log([medians_ms[size] / believed_ms[size - 1] for size in sizes])
    every_size = np.arange(1, believed_ms.size + 1)
    moved_ms = believed_ms * np.exp(np.interp(every_size, sizes, factors))
    return np.asarray(isotonic_regression(moved_ms).x, dtype=np.float64)


@dataclass
class WaitCorrection:
    """Holds the SLA on the percentile that is measured, by shortening what the policy waits.

    The policy's waits come from a model; where the world is worse than the model (bursts, a noisy
    neighbour), more requests are late than the SLA allows, and waits shrink until they are not.
    They grow back slowly while the SLA holds with room to spare.

    Attributes
    ----------
    factor : float
        What the policy's max wait is multiplied by: 1 believes the model, 0 starts at once.
    late_share : float
        Share of late requests, over about the last `MEMORY` of them.
    """

    #: Requests over which the late share is measured, at least; a percentile needs as many more
    #: as it allows fewer to be late.
    LEAST_LATE = 10
    SHRINK, GROW = 0.8, 0.02

    factor: float = 1.0
    late_share: float = 0.0
    _seen: float = 0.0
    _late: float = 0.0

    def revise(self, requests: int, late: int, allowed_share: float) -> float:
        """Take note of the latest requests, and give the factor for the next ones.

        Parameters
        ----------
        requests, late : int
            Requests answered since the last call, and how many of them late.
        allowed_share : float
            Share that the SLA allows to be late.
        """
        memory = self.LEAST_LATE / allowed_share
        keep = max(0.0, 1.0 - requests / memory)
        self._seen = keep * self._seen + requests
        self._late = keep * self._late + late
        if self._seen < memory / 2 or not requests:
            return self.factor
        self.late_share = self._late / self._seen
        if self.late_share > allowed_share:
            self.factor *= self.SHRINK
            # Judge the shorter wait by what comes after it.
            self._late *= self.SHRINK
        elif self.late_share < allowed_share / 2:
            self.factor = min(1.0, self.factor + self.GROW)
        return self.factor
