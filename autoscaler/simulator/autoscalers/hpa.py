"""Kubernetes' Horizontal Pod Autoscaler on the requests per second of a pod.

Every 15 s the HPA divides the metric by the target of one pod. If the result is within a tenth of
the present number, nothing changes. It may double the pods, or add four if that is more, in each
15 s. It scales in to the highest number that it wanted during the stabilization window, 300 s.

Source: Kubernetes 1.34, "Horizontal Pod Autoscaling" in its documentation, and
``pkg/controller/podautoscaler/replica_calculator.go`` (`GetExternalPerPodMetricReplicas`) and
``horizontal.go`` for the rules and the defaults. The HPA has no SLA. Users would set the
request rate of a pod, as a mean of a minute, as Prometheus' adapters provide it; the target is a
share (the knob) of the highest rate that a replica handles within the SLA.
"""

import math
from collections import deque
from dataclasses import dataclass

from autoscaler.scale_down import RecentMaximum
from autoscaler.simulator.scaling import FleetView


@dataclass(frozen=True)
class HpaSettings:
    """Settings of the HPA, with its defaults but for the target, a pod's requests per second.

    It scales in to the highest number wanted within `stabilization_s`, and changes nothing within
    the tolerance. The metric is the mean rate over `rate_window_s`.
    """

    target_per_s: float
    stabilization_s: float = 300.0
    sync_period_s: float = 15.0
    tolerance: float = 0.1
    rate_window_s: int = 60


class KubernetesHpa:
    name = "HPA"

    def __init__(self, settings: HpaSettings) -> None:
        self.settings = settings
        self._offered: deque[float] = deque(maxlen=int(settings.rate_window_s))
        self._wanted = RecentMaximum()
        self._next_sync_s = -math.inf

    def replicas(self, view: FleetView) -> int:
        self._offered.append(view.offered)
        if view.now_s < self._next_sync_s:
            return view.ordered
        self._next_sync_s = view.now_s + self.settings.sync_period_s
        return self._stabilized(view.now_s, self._wanted_by_rate(view.ordered), view.ordered)

    def _wanted_by_rate(self, current: int) -> int:
        rate_per_s = sum(self._offered) / len(self._offered)
        ratio = rate_per_s / (self.settings.target_per_s * max(1, current))
        if abs(ratio - 1) <= self.settings.tolerance:
            return max(1, current)
        return max(1, math.ceil(rate_per_s / self.settings.target_per_s))

    def _stabilized(self, now_s: float, wanted: int, current: int) -> int:
        stabilized = int(self._wanted.add(now_s, wanted, self.settings.stabilization_s))
        if wanted > current:
            return min(wanted, max(2 * current, current + 4))
        return min(current, stabilized)
