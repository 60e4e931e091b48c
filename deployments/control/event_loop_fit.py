"""Measure the cost of requests and batches to a replica's event loop, while it runs.

Of the CPU time of the loop's iterations, each batch and each refusal gets what it is believed to
cost, and the requests share the rest. So the cost per request is right for the batches of late. The
kernel's account of the thread's waits for a CPU turns CPU time into time.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from deployments.batcher.event_loop_meter import EventLoopCounts
from policy.event_loop import EventLoopCosts

#: CPU time of a batch, unless a profile has another, and of a refusal.
BATCH_MS, REFUSAL_MS = 0.1, 0.01
#: CPU time of a request that is assumed until there is data.
_REQUEST_MS = 0.05
#: Time after which a second's utilization and waits count for 1/e.
_WAITS_MEMORY_S = 10.0
#: Least utilization of a loop that is held up by other processes, and share of its time that it
#: waits for a CPU.
_MIN_UTILIZATION, _WAIT_SHARE = 0.2, 1 / 3
#: A loop that gets less of a CPU than this allows is not slow but stopped.
_MAX_SLOWDOWN = 100.0


class EventLoopFit:
    """Track how busy the event loop is, and what it spends; revise the costs that the model uses.

    `costs` are None until they are known. `slowdown` is time over CPU time of the loop's work, at
    least 1: it waits for a CPU. `lag_s` is the longest that the loop kept anything waiting in the
    last tick.
    """

    #: Time after which a second's data counts for 1/e.
    MEMORY_S = 30.0
    #: Seconds with requests, and requests, that are needed before the costs are judged.
    MIN_SECONDS, MIN_REQUESTS = 5.0, 100.0
    #: Relative error of the time per request that is tolerated.
    TOLERANCE = 0.25
    #: Below this utilization, costs that are known are not judged: with cold caches each request
    #: costs more, and it does not matter.
    LEAST_JUDGED = 0.05

    def __init__(self, costs: EventLoopCosts | None = None) -> None:
        self.costs = costs
        self.utilization, self.slowdown, self.lag_s = 0.0, 1.0, 0.0
        # Duration, busy time, CPU time and waits for a CPU.
        self._times_s = np.zeros(4)
        # Of late: answered requests, batches, refusals, seconds, and CPU time in ms.
        self._totals = np.zeros(5)
        self._batch_ms = BATCH_MS if costs is None else costs.batch_ms
        self._shares_cpu = costs is not None and costs.shares_cpu
        self._was_off = False

    @property
    def shares_cores(self) -> bool:
        """Whether the loop is held up mainly by other processes on its cores."""
        return self.utilization >= _MIN_UTILIZATION and 1 - 1 / self.slowdown >= _WAIT_SHARE

    @property
    def mean_batch_size(self) -> float | None:
        """Requests per batch, of late; None without batches."""
        answered, batches = self._totals[:2]
        return max(1.0, float(answered / batches)) if batches else None

    def report(self) -> dict[str, Any]:
        """Return the costs in force, and how busy the loop is; None where not measured."""
        costs = self.costs
        return {
            "request_ms": costs and costs.request_ms,
            "batch_ms": costs and costs.batch_ms,
            "shares_cpu": costs and costs.shares_cpu,
            "utilization": self.utilization,
            "slowdown": self.slowdown,
            "lag_ms": 1e3 * self.lag_s,
        }

    def observe(self, counts: EventLoopCounts, *, shares_cpu: bool) -> None:
        """Record a tick. `shares_cpu`: batches were computed on the event loop's CPU."""
        if counts.duration_s <= 0:
            return
        self._times_s *= math.exp(-counts.duration_s / _WAITS_MEMORY_S)
        self._times_s += counts.duration_s, counts.busy_s, counts.cpu_s, counts.cpu_wait_s
        duration_s, busy_s, cpu_s, wait_s = self._times_s.tolist()
        self.utilization = min(1.0, busy_s / duration_s)
        self.slowdown = 1 + wait_s / max(cpu_s, wait_s / (_MAX_SLOWDOWN - 1)) if wait_s else 1.0
        self.lag_s = counts.longest_lag_s
        self._shares_cpu = shares_cpu
        answered = counts.requests - counts.refused
        if counts.requests or counts.batches:
            self._totals *= math.exp(-counts.duration_s / self.MEMORY_S)
            self._totals += (
                *(answered, counts.batches, counts.refused),
                *(counts.duration_s, 1e3 * counts.work_cpu_s),
            )

    def revise(self) -> EventLoopCosts | None:
        """Return the measured costs if those that the model uses are wrong, else None.

        Call it at intervals of some seconds: two calls in a row must find them wrong. Costs that
        were not known are measured at the first call with enough data.
        """
        batch_size = self.mean_batch_size
        if (
            batch_size is None
            or self._totals[3] < self.MIN_SECONDS
            or self._totals[0] < self.MIN_REQUESTS
        ):
            return None
        measured, costs = self.measured(), self.costs
        if costs is not None and costs.shares_cpu == measured.shares_cpu:
            if self.utilization < self.LEAST_JUDGED:
                return None
            ratio = measured.ms_per_request(batch_size) / max(
                costs.ms_per_request(batch_size), 1e-9
            )
            is_off = not 1 / (1 + self.TOLERANCE) <= ratio <= 1 + self.TOLERANCE
            if not is_off or not self._was_off:
                self._was_off = is_off
                return None
        self._was_off = False
        # Two digits: replicas that measure nearly the same share solved tables.
        request_ms, batch_ms = (
            float(f"{ms:.2g}") for ms in (measured.request_ms, measured.batch_ms)
        )
        self.costs = replace(measured, request_ms=request_ms, batch_ms=batch_ms)
        return self.costs

    def measured(self) -> EventLoopCosts:
        """Return the costs as measured now, in wall time."""
        answered, batches, refused, _, cpu_ms = self._totals.tolist()
        request_ms, batch_ms = _REQUEST_MS, self._batch_ms
        if answered:
            rest_ms = max(0.0, cpu_ms - refused * REFUSAL_MS)
            # At most half of the time goes to batches: they may cost less than believed.
            batch_ms = min(batch_ms, rest_ms / (2 * batches)) if batches else batch_ms
            request_ms = (rest_ms - batches * batch_ms) / answered
        return EventLoopCosts(
            self.slowdown * request_ms, self.slowdown * batch_ms, self._shares_cpu
        )
