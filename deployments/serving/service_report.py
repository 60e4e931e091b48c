"""What a service tells of itself: to the autoscaler, and to whoever asks for its policy."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from autoscaler.reports import bottleneck_to_floats

if TYPE_CHECKING:
    from deployments.serving.service import InferenceService


def autoscaling_stats(service: "InferenceService") -> dict[str, float]:
    """Return what the autoscaler is told of a replica: counters, gauges and settings."""
    batcher, controller, observer = service.batcher, service.controller, service.observer
    return {
        "offered_total": batcher.rows.offered,
        "refused_total": batcher.rows.refused,
        "refused_by_balancer_total": service.counts.rows_refused_by_balancer,
        "completed_total": batcher.rows.completed,
        "queue_length": batcher.core.queue_length,
        "full_batch_size": batcher.core.limits.max_batch_size,
        "full_batch_ms": batcher.core.limits.latency_ms[-1],
        "answered_total": observer.answered_rows,
        "late_total": observer.late_rows,
        "counted_s": time.monotonic() - service.counting_since_s,
        **controller.sla_capacity.to_floats(),
        **bottleneck_to_floats(controller.bottleneck),
        **controller.user_config.autoscaler.settings().to_floats(),
    }


def policy_document(service: "InferenceService") -> Mapping[str, Any]:
    """Return the content of `GET /sojourn/policy`."""
    batcher, controller, observer = service.batcher, service.controller, service.observer
    user_config = controller.user_config
    now_s = time.monotonic()
    return {
        "model": service.model_name,
        "replica": service.replica,
        "sla": user_config.sla.model_dump(),
        "sla_in_words": user_config.sla.objective.in_words(),
        "objective": user_config.policy.model_dump(),
        "autoscaler": asdict(user_config.autoscaler.settings()),
        "standby": service.standby,
        "config_error": service.config_error or controller.error,
        "queue_length": batcher.core.queue_length,
        "proxy_delay_ms": 1e3 * observer.proxy_delay.delay_s,
        "cpus": service.device.cpus,
        "cpus_note": service.device.cpus_note,
        "start": service.start.explain(),
        "largest_batch_on_event_loop": batcher.placement.largest,
        "model_errors": batcher.model_errors.report(),
        "last_batches": [
            {"ended_s_ago": now_s - ended_s, **record.explain()}
            for ended_s, record in reversed(observer.last_batches)
        ],
        "batch_sizes": {str(size): n for size, n in service.batch_totals.batches.items()},
        "batches_started": {reason.value: count for reason, count in batcher.starts.items()},
        "rows": {
            "offered": batcher.rows.offered,
            "refused": batcher.rows.refused,
            "completed": batcher.rows.completed,
            "answered": observer.answered_rows,
            "late": observer.late_rows,
            "deadline_missed": batcher.rows.deadline_missed,
            "expired": batcher.rows.expired,
        },
        "device": {"busy_s": observer.device_busy_s, "energy_j": observer.energy_j},
        **controller.explain(),
    }
