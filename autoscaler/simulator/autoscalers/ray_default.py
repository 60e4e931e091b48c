"""Ray Serve's default autoscaling policy, version 2.60, on virtual time.

The policy aims at `target_ongoing_requests` requests per replica, waiting or running. With R
running replicas and a mean of L requests in the fleet it wants R + factor (L/target - R) replicas,
rounded up. It scales once it has wanted more for `upscale_delay_s` without a break, or fewer for
`downscale_delay_s`. The controller computes the mean L from points that the routers record every
fifth of the look-back period and send every `metrics_interval_s`. The mean is weighted by time; it
begins with the first point to which all replicas contribute, and the last point holds until now.

Sources, in ``ray/serve``: ``autoscaling_policy.py`` (`_core_replica_queue_length_policy`,
`_apply_scaling_factors`, `_apply_delay_logic`); ``_private/autoscaling_state.py``
(`_merge_and_aggregate_timeseries`); ``_private/router.py`` (`update_deployment_config`, the two
intervals); ``config.py`` (`AutoscalingConfig`, the defaults). The tests run Ray's own functions
beside these. Two things are simpler than in Ray: all routers send at the same times, and a point is
the mean of the last second instead of the value at that instant, and so is less noisy.
"""

import math
from collections import deque
from dataclasses import dataclass

from autoscaler.simulator.scaling import FleetView

#: RAY_SERVE_AUTOSCALING_METRIC_RECORD_INTERVAL_FACTOR: interval between points, as a share of the
#: look-back period.
_RECORD_INTERVAL_FACTOR = 0.2
#: Tolerance for the rounding of time differences, as in Ray.
_ROUNDING_S = 1e-6


@dataclass(frozen=True)
class RaySettings:
    """`AutoscalingConfig` of Ray Serve, with its names and defaults."""

    target_ongoing_requests: float = 2.0
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0
    upscaling_factor: float = 1.0
    downscaling_factor: float = 1.0
    look_back_period_s: float = 30.0
    metrics_interval_s: float = 10.0


class DelayedTarget:
    """Applies Ray's factors and delays to the number of replicas that the load calls for."""

    def __init__(self, settings: RaySettings) -> None:
        self._settings = settings
        # Since `_since_s`, more replicas (above 0) or fewer (below 0) have been wanted.
        self._direction = 0
        self._since_s = math.inf

    def next(self, now_s: float, ongoing: float, running: int, target: int) -> int:
        """Return the number of replicas to order; `ongoing` is the mean number that wait or run."""
        if running == 0:
            if ongoing > 0:  # a cold start is not delayed
                return max(math.ceil(self._settings.upscaling_factor), target)
            return target or self._after_delay(now_s, 0, 0)
        wanted_load = self._settings.target_ongoing_requests * running
        return self._after_delay(
            now_s, self._scaled(running * (ongoing / wanted_load), running), target
        )

    def _scaled(self, desired: float, running: int) -> int:
        delta = desired - running
        settings = self._settings
        factor = settings.upscaling_factor if delta > 0 else settings.downscaling_factor
        scaled = math.ceil(running + factor * delta)
        if math.ceil(desired) < running and scaled == running:
            scaled -= 1  # a small factor must not prevent scaling in for ever
        return scaled

    def _after_delay(self, now_s: float, desired: int, target: int) -> int:
        desired = max(0, desired)
        direction = (desired > target) - (desired < target)
        if direction != self._direction:
            self._direction, self._since_s = direction, now_s
        if direction == 0:
            return target
        settings = self._settings
        delay_s = settings.upscale_delay_s if direction > 0 else settings.downscale_delay_s
        if now_s - self._since_s + _ROUNDING_S < delay_s:
            return target
        self._direction = 0
        if direction < 0 and target > 1:  # it goes to zero only from one
            return max(1, desired)
        return desired


class RayDefault:
    """Ray Serve's `default_autoscaling_policy`; without settings, by Ray's defaults."""

    name = "ray default"

    def __init__(self, settings: RaySettings | None = None) -> None:
        self.settings = settings or RaySettings()
        self._target = DelayedTarget(self.settings)
        self._recorded: deque[tuple[float, float]] = deque()
        self._sent: list[tuple[float, float]] = []
        self._next_record_s = -math.inf
        self._next_send_s = -math.inf
        self._ready = 0
        self._newest_ready_s = -math.inf

    def replicas(self, view: FleetView) -> int:
        self._record(view)
        ongoing = average_ongoing(self._sent, view.now_s, self._newest_ready_s)
        return self._target.next(view.now_s, ongoing, view.ready, view.ordered)

    def _record(self, view: FleetView) -> None:
        now_s, settings = view.now_s, self.settings
        if view.ready > self._ready:
            self._newest_ready_s = now_s
        self._ready = view.ready
        if now_s >= self._next_record_s:
            self._recorded.append((now_s, view.ongoing))
            interval_s = min(
                _RECORD_INTERVAL_FACTOR * settings.look_back_period_s, settings.metrics_interval_s
            )
            self._next_record_s = now_s + interval_s
        if now_s >= self._next_send_s:
            while self._recorded and self._recorded[0][0] < now_s - settings.look_back_period_s:
                self._recorded.popleft()
            self._sent = list(self._recorded)
            self._next_send_s = now_s + settings.metrics_interval_s


def average_ongoing(
    points: list[tuple[float, float]], now_s: float, aligned_s: float = -math.inf
) -> float:
    """Return the time average of the controller's step function; 0 without points.

    Points are times and values, the oldest first. A value holds until the next point, the last one
    until `now_s`. The newest replica began to contribute at `aligned_s`: the average begins with
    the first point from then on, if there is one.
    """
    later = [point for point in points if point[0] >= aligned_s]
    window = later or points
    if not window:
        return 0.0
    ends_s = [time_s for time_s, _ in window[1:]] + [max(now_s, window[-1][0] + 1e-3)]
    area = sum(
        value * (end_s - time_s) for (time_s, value), end_s in zip(window, ends_s, strict=True)
    )
    return area / (ends_s[-1] - window[0][0])
