"""A replica's metrics: `sojourn_*` in base units, exported by Ray.

The request path only appends to lists and counters. `flush` hands them to Ray once a second; Ray
exports them to the cluster's Prometheus, with the prefix `ray_`. Counters are exact; in a busy
second, histograms get a random sample.
"""

import random
import time
from collections import Counter as Counts
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from ray.serve import metrics

from autoscaler.reports import BOTTLENECKS
from deployments.control.observations import Observations
from deployments.service import InferenceService

_RESPONSE_TIMES_S = [
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0),
]
#: Ray takes some 10 µs to observe a value: recording every request would slow the event loop.
_MAX_OBSERVATIONS_PER_FLUSH = 200
_BATCH_SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]

#: Counters of rows: what they count, and their total.
_ROWS: dict[str, tuple[str, Callable[[InferenceService], int]]] = {
    "offered": ("Rows that reached this replica.", lambda service: service.batcher.rows.offered),
    "refused": ("Rows that this replica refused.", lambda service: service.batcher.rows.refused),
    "late": ("Rows that were answered too late.", lambda service: service.observer.late_rows),
    "pruned": (
        "Rows that were dropped from the queue because they would have been too late.",
        lambda service: service.batcher.rows.pruned,
    ),
    "refused_too_late": (
        "Rows that no replica could have answered in time when they were read.",
        lambda service: service.batcher.rows.refused_too_late,
    ),
    "cancelled": (
        "Rows of requests whose clients left.",
        lambda service: service.batcher.rows.cancelled,
    ),
}

_T = TypeVar("_T")


def _sample(values: list[_T]) -> list[_T]:
    return random.sample(values, min(len(values), _MAX_OBSERVATIONS_PER_FLUSH))


class ReplicaMetrics:
    """The metrics of one `InferenceService`.

    Parameters
    ----------
    service : InferenceService
        A service; it must be configured before the first `flush`.
    """

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        self._flushed: Counts[Hashable] = Counts()
        self._rows = {
            kind: metrics.Counter(f"sojourn_{kind}_rows_total", description=description)
            for kind, (description, _) in _ROWS.items()
        }
        self._answers = metrics.Counter(
            "sojourn_answers_total", description="Answers by HTTP status.", tag_keys=("status",)
        )
        self._refits = metrics.Counter(
            "sojourn_profile_refits_total",
            description="How often the profile was fitted again to what batches and requests take.",
        )
        self._admitted = metrics.Counter(
            "sojourn_admitted_requests_total",
            description="Requests admitted by a token, by its name.",
            tag_keys=("token",),
        )
        self._denied = metrics.Counter(
            "sojourn_denied_requests_total",
            description="Requests without access: 401 no valid token, 403 scope, 429 rate.",
            tag_keys=("status",),
        )
        self._batches = metrics.Counter(
            "sojourn_batches_total",
            description="Batches by the reason for which they started.",
            tag_keys=("reason",),
        )
        self._energy = metrics.Counter(
            "sojourn_energy_joules_total",
            description="Energy of the batches, if known.",
        )
        self._solver_failures = metrics.Counter(
            "sojourn_solver_failures_total",
            description="Solvers of the policy that died, hung or found no solution.",
        )
        self._response_time = metrics.Histogram(
            "sojourn_response_time_seconds",
            description="From the arrival of a request at the replica to its answer.",
            boundaries=_RESPONSE_TIMES_S,
        )
        self._batch_duration = metrics.Histogram(
            "sojourn_batch_duration_seconds",
            description="Time of a batch on the device.",
            boundaries=_RESPONSE_TIMES_S,
        )
        self._batch_size = metrics.Histogram(
            "sojourn_batch_size_rows", description="Rows of a batch.", boundaries=_BATCH_SIZES
        )
        self._queue_length = metrics.Gauge(
            "sojourn_queue_length_rows", description="Rows waiting for the device."
        )
        self._body_bytes = metrics.Gauge(
            "sojourn_body_bytes", description="Bytes of the bodies of unanswered requests."
        )
        self._arrival_rate = metrics.Gauge(
            "sojourn_arrival_rate_rows_per_second",
            description="The batcher's estimate of its arrival rate.",
        )
        self._control_limit = metrics.Gauge(
            "sojourn_control_limit_rows", description="Queue length at which a batch starts."
        )
        self._sla_response_time = metrics.Gauge(
            "sojourn_sla_response_time_seconds", description="Response time of the SLA in force."
        )
        self._sla_percentile = metrics.Gauge(
            "sojourn_sla_percentile_ratio", description="Share of requests that the SLA covers."
        )
        self._front_utilisation = metrics.Gauge(
            "sojourn_front_utilisation_ratio",
            description="Share of the time for which the event loop had work.",
        )
        self._loop_lag = metrics.Gauge(
            "sojourn_loop_lag_seconds",
            description="The longest that the event loop kept anything waiting in the last second.",
        )
        self._bottleneck = metrics.Gauge(
            "sojourn_bottleneck",
            description="1 for what limits the replica: front, device or neither; else 0.",
            tag_keys=("stage",),
        )

        self._start = metrics.Gauge(
            "sojourn_start_seconds",
            description="What the replica's start was spent on, by phase.",
            tag_keys=("phase",),
        )

    def flush(self, seen: Observations) -> None:
        """Hand to Ray what was observed since the last call."""
        service = self._service
        batcher = service.batcher
        for kind, (_, total) in _ROWS.items():
            self._add(self._rows[kind], total(service))
        self._add(self._refits, service.controller.profile_revisions)
        for status, count in service.answers.items():
            self._add(self._answers, count, {"status": str(status)})
        for token, count in service.access.admitted.items():
            self._add(self._admitted, count, {"token": token})
        for status, count in service.access.denied.items():
            self._add(self._denied, count, {"status": str(status)})
        for reason, count in batcher.starts.items():
            self._add(self._batches, count, {"reason": reason.value})
        self._add(self._solver_failures, service.controller.solver_failures)
        energy_j = 1e-3 * sum(record.energy_mj or 0.0 for record in seen.batches)
        if energy_j > 0:
            self._energy.inc(energy_j)
        for record in _sample(seen.batches):
            self._batch_duration.observe(record.duration_s)
            self._batch_size.observe(record.size)
        for response_time_s in _sample(seen.response_times_s):
            self._response_time.observe(response_time_s)
        self._set_gauges()

    def _set_gauges(self) -> None:
        controller = self._service.controller
        core, sla, front = controller.core, controller.user_config.sla, controller.front.state
        now_s = time.monotonic()
        self._queue_length.set(core.queue_length)
        self._body_bytes.set(self._service.bodies.used_bytes)
        self._arrival_rate.set(core.arrival_rate.per_s(now_s))
        self._control_limit.set(core.policy(now_s).control_limit)
        self._sla_response_time.set(1e-3 * sla.response_time_ms)
        self._sla_percentile.set(1e-2 * sla.percentile)
        self._front_utilisation.set(front.utilisation)
        self._loop_lag.set(front.lag_s)
        limiting = controller.bottleneck
        for stage in BOTTLENECKS:
            self._bottleneck.set(float(stage == limiting), {"stage": stage})

        for phase, seconds in self._service.start.split.seconds().items():
            self._start.set(seconds, {"phase": phase})

    def _add(
        self, counter: metrics.Counter, total: int, tags: Mapping[str, str] | None = None
    ) -> None:
        """Increment `counter` by what `total` has grown since the last call."""
        key = (counter.info["name"], *(tags or {}).values())
        if total > self._flushed[key]:
            counter.inc(total - self._flushed[key], tags=dict(tags or {}))
            self._flushed[key] = total
