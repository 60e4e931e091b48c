"""Reacting to a measured percentile through two thresholds, as Dynamo's planner does.

At the end of each interval, the 90th percentile of the response times is compared with two shares
of the SLA's response time. Above the upper one, replicas are added; below the lower one, one is
removed. While replicas are still starting, nothing is decided.

Source: ai-dynamo/dynamo, "Planner Design" (load-based scaling): a worker is added if the latency
estimated from measured load exceeds the SLA, and removed if it is below the SLA times a
sensitivity. There, the latency is estimated for the prefill and the decode workers of a language
model; here it is measured, and a refused request counts as slower than any answer. How many
replicas are added is a setting, since one at a time is slow for a fleet of dozens.
"""

import math

import numpy as np

from autoscaler.simulator.engines.counters import bin_edges_ms
from autoscaler.simulator.scaling import FleetView
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective

PERCENTILE = 90.0


class LatencyThresholds:
    """Adds and removes replicas by thresholds on the 90th percentile of the response time.

    Parameters
    ----------
    objective : ServiceLevelObjective
    upper_share : float
        Upper threshold, as a share of the SLA's response time.
    lower_share : float
        Lower threshold, as a share of the upper one.
    interval_s : float
        Time between two decisions.
    step_share : float
        Replicas added at once, as a share of those ordered; at least one.
    name : str

    Raises
    ------
    InvalidInputError
        A value is out of its range.
    """

    def __init__(
        self,
        objective: ServiceLevelObjective,
        upper_share: float = 1.0,
        lower_share: float = 0.8,
        interval_s: float = 30.0,
        step_share: float = 0.0,
        name: str = "P90 thresholds",
    ) -> None:
        if not (upper_share > 0 and 0 < lower_share < 1 and interval_s >= 1 and step_share >= 0):
            raise InvalidInputError(
                "upper_share must be above 0, lower_share between 0 and 1, interval_s at least 1, "
                "and step_share at least 0"
            )
        self.name = name
        self._upper_ms = upper_share * objective.response_time_ms
        self._lower_ms = lower_share * self._upper_ms
        self._interval_s = interval_s
        self._step_share = step_share
        self._edges_ms = bin_edges_ms()
        self._seen = np.zeros(self._edges_ms.size - 1)
        self._refused = 0.0
        self._next_s = interval_s

    def replicas(self, view: FleetView) -> int:
        """Return how many replicas should be ordered."""
        self._refused += view.refused
        if view.now_s < self._next_s:
            return view.ordered
        self._next_s = view.now_s + self._interval_s
        percentile_ms = self._percentile_ms(view.histogram - self._seen)
        self._seen = view.histogram.copy()
        self._refused = 0.0
        if view.ready < view.ordered:
            return view.ordered
        if percentile_ms > self._upper_ms:
            return view.ordered + max(1, math.ceil(self._step_share * view.ordered))
        if percentile_ms < self._lower_ms:
            return max(1, view.ordered - 1)
        return view.ordered

    def _percentile_ms(self, answered: np.ndarray) -> float:
        """Return the percentile of the interval; 0 without requests, infinity if it was refused."""
        total = float(answered.sum()) + self._refused
        if not total:
            return 0.0
        place = int(np.searchsorted(np.cumsum(answered), PERCENTILE / 100 * total))
        return float(self._edges_ms[place + 1]) if place < answered.size else math.inf
