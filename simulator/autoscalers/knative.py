"""Knative's Pod Autoscaler (KPA): a stable minute, and a panic window of a tenth of it.

It aims at a concurrency per pod, of which `target_utilization` is used: the average number of
requests in the fleet over the stable window, by that target, is the number of pods. If the average
over the panic window calls for `panic_threshold` times the ready pods or more, it panics: the
larger of the two counts, and none go, until the threshold has not been crossed for a stable window.
One step takes at most `max_scale_up_rate` times the ready pods, and leaves at least 1 /
`max_scale_down_rate` of them.

Source: knative/serving, ``pkg/autoscaler/scaling/autoscaler.go`` (`Scale`), and for the defaults
``config/core/configmaps/autoscaler.yaml``; the tests follow the numbers of Knative's own tests.
Knative has no concurrency target of a model: here it is a full batch, what a pod computes at once
and so what one would write as its `containerConcurrency`. It is a knob.
"""

import math
from collections import deque
from dataclasses import dataclass

from policy.errors import InvalidInputError
from simulator.scaling import FleetView


@dataclass(frozen=True)
class KnativeSettings:
    """Settings of the KPA, by its own names and with its own defaults, but for the target.

    Attributes
    ----------
    concurrency_target : float
        Requests in one pod, waiting or running, at full use.
    target_utilization : float
        Share of the target to use.
    stable_window_s, panic_window_s : float
    panic_threshold : float
        Ratio of the pods that the panic window calls for to those that are ready.
    max_scale_up_rate, max_scale_down_rate : float
    scale_down_delay_s : float
        The highest number of this long is kept.
    tick_s : float
        Time between two decisions.

    Raises
    ------
    InvalidInputError
        A value is out of its range.
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

    def __post_init__(self) -> None:
        for name in ("max_scale_up_rate", "max_scale_down_rate"):
            if not getattr(self, name) > 1:
                raise InvalidInputError(f"{name}: must be above 1, not {getattr(self, name)}")
        for name in ("concurrency_target", "target_utilization", "panic_threshold", "tick_s"):
            if not getattr(self, name) > 0:
                raise InvalidInputError(f"{name}: must be above 0, not {getattr(self, name)}")
        if not 1 <= self.panic_window_s <= self.stable_window_s:
            raise InvalidInputError(
                "panic_window_s: must be from 1 to the stable window, "
                f"{self.stable_window_s:g}, not {self.panic_window_s:g}"
            )


class KnativeScale:
    """One decision after the other, from the two averages: `Scale` of Knative's autoscaler.

    Parameters
    ----------
    settings : KnativeSettings
    ready_at_start : int
        With more than one it starts in panic: it knows no history yet, and must not scale in.
    now_s : float
        When it starts.
    """

    def __init__(self, settings: KnativeSettings, ready_at_start: int, now_s: float) -> None:
        self._settings = settings
        self._panic_since_s = now_s if ready_at_start > 1 else None
        self._most_in_panic = ready_at_start
        self._wanted: deque[tuple[float, int]] = deque()

    @property
    def panics(self) -> bool:
        """Whether it is in panic mode."""
        return self._panic_since_s is not None

    def next(self, now_s: float, stable: float, panic: float, ready: int) -> int:
        """Give the pods to order.

        Parameters
        ----------
        now_s : float
        stable, panic : float
            Requests in the fleet, averaged over the two windows.
        ready : int
            Pods that serve; none count as one.
        """
        settings = self._settings
        pods = max(1, ready)
        most = math.ceil(settings.max_scale_up_rate * pods)
        least = math.floor(pods / settings.max_scale_down_rate)
        target = settings.concurrency_target * settings.target_utilization
        by_panic = math.ceil(panic / target)
        desired = min(max(math.ceil(stable / target), least), most)

        if by_panic / pods >= settings.panic_threshold:
            self._panic_since_s = now_s
        elif (
            self._panic_since_s is not None
            and self._panic_since_s + settings.stable_window_s < now_s
        ):
            self._panic_since_s = None
            self._most_in_panic = 0

        if self._panic_since_s is not None:
            desired = max(desired, min(max(by_panic, least), most))
            self._most_in_panic = desired = max(self._most_in_panic, desired)
        return self._delayed(now_s, desired)

    def _delayed(self, now_s: float, desired: int) -> int:
        delay_s = self._settings.scale_down_delay_s
        if not delay_s:
            return desired
        while self._wanted and self._wanted[-1][1] <= desired:
            self._wanted.pop()
        self._wanted.append((now_s, desired))
        while now_s - self._wanted[0][0] >= delay_s:
            self._wanted.popleft()
        return self._wanted[0][1]


class Knative:
    """The KPA on a simulated fleet, with a mean per second for a scrape per second.

    Parameters
    ----------
    settings : KnativeSettings
    name : str
    """

    def __init__(self, settings: KnativeSettings, name: str = "knative") -> None:
        self.name = name
        self.settings = settings
        self._ongoing: deque[float] = deque(maxlen=round(settings.stable_window_s))
        self._scale: KnativeScale | None = None
        self._next_tick_s = -math.inf
        self._decided = 1

    def replicas(self, view: FleetView) -> int:
        """Give the replicas that should be ordered."""
        if self._scale is None:
            self._scale = KnativeScale(self.settings, view.ready, view.now_s)
        self._ongoing.append(view.ongoing)
        if view.now_s >= self._next_tick_s:
            recent = list(self._ongoing)[-round(self.settings.panic_window_s) :]
            stable, panic = (sum(part) / len(part) for part in (self._ongoing, recent))
            self._decided = max(1, self._scale.next(view.now_s, stable, panic, view.ready))
            self._next_tick_s = view.now_s + self.settings.tick_s
        return self._decided
