"""The metrics of a replica: names, labels and sources of values."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from autoscaler.metrics import Instrument
from autoscaler.reports import BOTTLENECKS
from deployments.control.observations import Observations
from deployments.serving.service import InferenceService

#: Values of a metric by labels: totals of a counter, observations of a histogram.
Reading = Iterable[tuple[tuple[str, ...], float]]

_RESPONSE_TIMES_S = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0),
)
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class ReplicaInstrument(Instrument):
    """A metric of a replica.

    `read` returns its values, given the service and what it observed since the last call; of a
    counter, the totals since the start.
    """

    read: Callable[[InferenceService, Observations], Reading] = lambda service, seen: ()


def _metric(
    kind: Literal["counter", "gauge"],
    name: str,
    description: str,
    value: Callable[[InferenceService], Mapping[Any, float] | float | None],
    label: str = "",
) -> ReplicaInstrument:
    """Return a counter or gauge; `value` returns a number, or one for each value of `label`."""

    def read(service: InferenceService, seen: Observations) -> Reading:
        now = value(service)
        if isinstance(now, Mapping):
            return [((str(key),), number) for key, number in now.items()]
        return [] if now is None else [((), now)]

    return ReplicaInstrument(name, kind, description, (label,) if label else (), read=read)


_counter, _gauge = partial(_metric, "counter"), partial(_metric, "gauge")


def _histogram(
    name: str,
    description: str,
    buckets: tuple[float, ...],
    values: Callable[[Observations], Iterable[float]],
) -> ReplicaInstrument:
    return ReplicaInstrument(
        name,
        "histogram",
        description,
        buckets=buckets,
        read=lambda service, seen: [((), value) for value in values(seen)],
    )


def _in_seconds(by_percentile: Mapping[str, float]) -> dict[str, float]:
    return {percentile: 1e-3 * value for percentile, value in by_percentile.items()}


REPLICA_INSTRUMENTS: tuple[ReplicaInstrument, ...] = (
    _counter(
        "sojourn_offered_rows_total",
        "Rows that reached this replica.",
        lambda s: s.batcher.rows.offered,
    ),
    _counter(
        "sojourn_refused_rows_total",
        "Rows that this replica refused.",
        lambda s: s.batcher.rows.refused,
    ),
    _counter(
        "sojourn_completed_rows_total",
        "Rows for which the model returned outputs.",
        lambda s: s.batcher.rows.completed,
    ),
    _counter(
        "sojourn_answered_rows_total",
        "Rows that count for the SLA: answered, or cancelled because they were too late.",
        lambda s: s.observer.answered_rows,
    ),
    _counter(
        "sojourn_late_rows_total",
        "Those among them that were too late.",
        lambda s: s.observer.late_rows,
    ),
    _counter(
        "sojourn_pruned_rows_total",
        "Rows that were dropped from the queue because they would have been too late.",
        lambda s: s.batcher.rows.pruned,
    ),
    _counter(
        "sojourn_refused_too_late_rows_total",
        "Rows that no replica could have answered in time when they were read.",
        lambda s: s.batcher.rows.refused_too_late,
    ),
    _counter(
        "sojourn_cancelled_rows_total",
        "Rows of requests whose clients left.",
        lambda s: s.batcher.rows.cancelled,
    ),
    ReplicaInstrument(
        "sojourn_answers_total",
        "counter",
        "Answers by HTTP status and, of refusals, the reason, as in the header X-Sojourn-Reason.",
        ("status", "reason"),
        read=lambda service, seen: [
            ((str(status), reason), number) for (status, reason), number in service.answers.items()
        ],
    ),
    _counter(
        "sojourn_model_errors_total",
        "Requests that the model failed on: an exception, or outputs other than declared.",
        lambda s: s.batcher.runner.errors.count,
    ),
    _counter(
        "sojourn_admitted_requests_total",
        "Requests admitted by a token, by its name.",
        lambda s: s.access.admitted,
        "token",
    ),
    _counter(
        "sojourn_denied_requests_total",
        "Requests without access: 401 no valid token, 403 scope, 429 rate.",
        lambda s: s.access.denied,
        "status",
    ),
    _histogram(
        "sojourn_response_time_seconds",
        "From the arrival of a request at the replica to its answer.",
        _RESPONSE_TIMES_S,
        lambda seen: seen.response_times_s,
    ),
    _gauge(
        "sojourn_measured_response_time_seconds",
        "Response time of the last second with answers, by percentile.",
        lambda s: _in_seconds(s.controller.percentiles.measured_ms),
        "percentile",
    ),
    _gauge(
        "sojourn_predicted_response_time_seconds",
        "The same as the model of the replica predicts it at the present load.",
        lambda s: _in_seconds(s.controller.percentiles.predicted_ms),
        "percentile",
    ),
    _gauge(
        "sojourn_sla_response_time_seconds",
        "Response time of the SLA in force.",
        lambda s: 1e-3 * s.controller.user_config.sla.response_time_ms,
    ),
    _gauge(
        "sojourn_sla_percentile_ratio",
        "Share of requests that the SLA covers.",
        lambda s: 1e-2 * s.controller.user_config.sla.percentile,
    ),
    _gauge(
        "sojourn_config_rejected",
        "1 while the newest user_config is rejected and an older one is in force, with its tokens.",
        lambda s: float(s.config_error is not None),
    ),
    _gauge(
        "sojourn_queue_length_rows",
        "Rows waiting for the device.",
        lambda s: s.batcher.core.queue_length,
    ),
    _gauge(
        "sojourn_body_bytes",
        "Bytes of the bodies of unanswered requests.",
        lambda s: s.bodies.used_bytes,
    ),
    _gauge(
        "sojourn_arrival_rate_rows_per_second",
        "The batcher's estimate of its arrival rate.",
        lambda s: s.batcher.core.arrival_rate.per_s(time.monotonic()),
    ),
    _gauge(
        "sojourn_control_limit_rows",
        "Queue length at which a batch starts.",
        lambda s: s.batcher.core.policy(time.monotonic()).control_limit,
    ),
    _gauge(
        "sojourn_longest_wait_seconds",
        "The longest that a free device lets the oldest request wait.",
        lambda s: 1e-3 * s.batcher.core.longest_wait_ms(s.batcher.core.policy(time.monotonic())),
    ),
    _counter(
        "sojourn_batches_total",
        "Batches by the reason for which they started.",
        lambda s: {reason.value: count for reason, count in s.batcher.starts.items()},
        "reason",
    ),
    _histogram(
        "sojourn_batch_size_rows",
        "Rows of a batch.",
        _BATCH_SIZES,
        lambda seen: [record.size for record in seen.batches],
    ),
    _histogram(
        "sojourn_batch_duration_seconds",
        "Time of a batch on the device.",
        _RESPONSE_TIMES_S,
        lambda seen: [record.duration_s for record in seen.batches],
    ),
    _histogram(
        "sojourn_oldest_wait_seconds",
        "How long the oldest request of a batch had waited when it started.",
        _RESPONSE_TIMES_S,
        lambda seen: [record.oldest_wait_s for record in seen.batches],
    ),
    _counter(
        "sojourn_device_busy_seconds_total",
        "Time for which batches were on the device.",
        lambda s: s.observer.device_busy_s,
    ),
    _counter(
        "sojourn_energy_joules_total",
        "Energy of the device by its meter, idle times included.",
        lambda s: s.observer.energy_j,
    ),
    _gauge(
        "sojourn_power_watts",
        "Power of the device: measured by its meter, and as the replica's model predicts it.",
        lambda s: s.controller.power_w,
        "kind",
    ),
    _gauge("sojourn_standby", "1 if this replica stands by, else 0.", lambda s: float(s.standby)),
    _gauge(
        "sojourn_full_batch_seconds",
        "Time of the largest batch, by the profile now believed.",
        lambda s: 1e-3 * float(s.controller.profile.latency_ms[-1]),
    ),
    _gauge(
        "sojourn_profiled_full_batch_seconds",
        "The same by the profile that the replica started with.",
        lambda s: 1e-3 * s.controller.profiled_full_batch_ms,
    ),
    _counter(
        "sojourn_profile_refits_total",
        "How often the profile was fitted again to what batches and requests take.",
        lambda s: s.controller.corrections.profile_revisions,
    ),
    _counter(
        "sojourn_solver_failures_total",
        "Solvers of the policy that died, hung or found no solution.",
        lambda s: s.controller.solver.failures,
    ),
    _gauge(
        "sojourn_event_loop_utilization_ratio",
        "Share of the time for which the event loop had work.",
        lambda s: s.controller.corrections.event_loop.utilization,
    ),
    _gauge(
        "sojourn_event_loop_lag_seconds",
        "The longest that the event loop kept anything waiting in the last second.",
        lambda s: s.controller.corrections.event_loop.lag_s,
    ),
    _gauge(
        "sojourn_bottleneck",
        "1 for what limits the replica: event loop, device or neither; else 0.",
        lambda s: {stage: float(stage == s.controller.bottleneck) for stage in BOTTLENECKS},
        "stage",
    ),
    _gauge(
        "sojourn_start_seconds",
        "What the replica's start was spent on, by phase.",
        lambda s: s.start.timings.seconds(),
        "phase",
    ),
)
