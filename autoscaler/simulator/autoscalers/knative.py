"""Knative's Pod Autoscaler (KPA): a stable window of a minute and a panic window of a tenth of it.

The KPA aims at a concurrency per pod, of which it uses the share `target_utilization`: the number
of pods is the mean number of requests in the fleet over the stable window, divided by that target.
If the mean over the panic window calls for at least `panic_threshold` times the ready pods, the KPA
panics: it takes the larger of the two numbers and removes no pod until the threshold has not been
crossed for a stable window. One step goes to at most `max_scale_up_rate` times the ready pods and
leaves at least 1 / `max_scale_down_rate` of them.

Source: knative/serving, ``pkg/autoscaler/scaling/autoscaler.go`` (`Scale`), and for the defaults
``config/core/configmaps/autoscaler.yaml``; the tests use the numbers of Knative's own tests.
Knative has no concurrency target for a model. Here it is a full batch: what a pod computes at once,
and so what one would set as `containerConcurrency`. It is the knob.
"""

import math
from collections import deque
from dataclasses import dataclass

from autoscaler.scale_down import RecentMaximum
from autoscaler.simulator.scaling import FleetView


@dataclass(frozen=True)
class KnativeSettings:
    """Settings of the KPA, with its names and, except for the target, its defaults.

    The target is of requests in one pod, waiting or running, at full utilization. The highest
    number decided over the scale-down delay counts.
    """

    concurrency_target: float
    target_utilization: float = 0.7
    stable_window_s: float = 60.0
    panic_window_s: float = 6.0
    panic_threshold: float = 2.0
    max_scale_up_rate: float = 1000.0
    max_scale_down_rate: float = 2.0
    scale_down_delay_s: float = 0.0
    tick_s: float = 2.0


class KnativeScale:
    """`Scale` of Knative's autoscaler: one decision after the other from the two means.

    With more than one ready pod at its start it begins in panic mode: without a history it must not
    scale in.
    """

    def __init__(self, settings: KnativeSettings, ready_at_start: int, now_s: float) -> None:
        self._settings = settings
        self._panic_since_s = now_s if ready_at_start > 1 else None
        self._max_panic_pods = ready_at_start
        self._recent_decisions = RecentMaximum()

    @property
    def is_panicking(self) -> bool:
        return self._panic_since_s is not None

    def next(self, now_s: float, stable: float, panic: float, ready: int) -> int:
        """Return the pods to order, by the mean number of requests over the two windows."""
        settings = self._settings
        pods = max(1, ready)
        max_pods = math.ceil(settings.max_scale_up_rate * pods)
        min_pods = math.floor(pods / settings.max_scale_down_rate)
        target = settings.concurrency_target * settings.target_utilization
        panic_pods = math.ceil(panic / target)
        desired = min(max(math.ceil(stable / target), min_pods), max_pods)

        if panic_pods / pods >= settings.panic_threshold:
            self._panic_since_s = now_s
        elif (
            self._panic_since_s is not None
            and self._panic_since_s + settings.stable_window_s < now_s
        ):
            self._panic_since_s = None
            self._max_panic_pods = 0

        if self.is_panicking:
            desired = max(desired, min(max(panic_pods, min_pods), max_pods))
            self._max_panic_pods = desired = max(self._max_panic_pods, desired)
        # A decision counts for less than the delay.
        less_s = math.nextafter(settings.scale_down_delay_s, 0.0)
        return int(self._recent_decisions.add(now_s, desired, less_s))


class Knative:
    """The KPA on a simulated fleet; the mean over each second replaces Knative's scrape."""

    name = "knative"

    def __init__(self, settings: KnativeSettings) -> None:
        self.settings = settings
        self._ongoing: deque[float] = deque(maxlen=round(settings.stable_window_s))
        self._scaler: KnativeScale | None = None
        self._next_tick_s = -math.inf
        self._decision = 1

    def replicas(self, view: FleetView) -> int:
        if self._scaler is None:
            self._scaler = KnativeScale(self.settings, view.ready, view.now_s)
        self._ongoing.append(view.ongoing)
        if view.now_s >= self._next_tick_s:
            recent = list(self._ongoing)[-round(self.settings.panic_window_s) :]
            stable, panic = (sum(part) / len(part) for part in (self._ongoing, recent))
            self._decision = max(1, self._scaler.next(view.now_s, stable, panic, view.ready))
            self._next_tick_s = view.now_s + self.settings.tick_s
        return self._decision
