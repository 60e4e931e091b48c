"""The board of replicas: when their batches start, how long they take, and what limits them."""

from typing import Any

from monitoring.panels import (
    BLUE,
    GREEN,
    ORANGE,
    REPLICAS,
    About,
    Query,
    board,
    buckets,
    lines,
    states,
)

_LIMITS = {0: ("neither", ORANGE), 1: ("device", GREEN), 2: ("front", BLUE)}


def _gauge(metric: str, labels: str = "") -> str:
    selected = f"{REPLICAS}, {labels}" if labels else REPLICAS
    return f"max by (replica) (ray_sojourn_{metric}{{{selected}}})"


def _rate(metric: str, by: str = "replica") -> str:
    """Return the rate of a counter, or of the buckets or the count of a histogram."""
    return f"sum by ({by}) (rate(ray_sojourn_{metric}{{{REPLICAS}}}[$__rate_interval]))"


def _quantile(share: float, histogram: str) -> str:
    return f"histogram_quantile({share}, {_rate(f'{histogram}_bucket', 'le')})"


def replica_board() -> dict[str, Any]:
    """Return the board as JSON-ready content."""
    return board(
        "sojourn-replica",
        "Sojourn: replicas and batches",
        "When do batches start, do they take as long as profiled, and what limits a replica?",
        {
            "When batches start": _starts(),
            "Batches": _batches(),
            "Front and device": _stages(),
            "Answers": _answers(),
        },
        ["application", "deployment", "replica"],
    )


def _starts() -> list[Any]:
    return [
        lines(
            About(
                "Queue and control limit",
                "Rows that wait, once a second, and the number at which a free device starts a "
                "batch under the policy in force (dashed). While a batch runs, the queue may "
                "exceed the limit.",
                "docs/policy.md",
                "none",
            ),
            Query(_gauge("queue_length_rows"), "waiting {{replica}}"),
            Query(_gauge("control_limit_rows"), "control limit {{replica}}", dashed=True),
        ),
        lines(
            About(
                "Wait of a batch's oldest request",
                "How long the oldest request of a batch had waited when it started, and the "
                "longest that a free device lets it wait (dashed). Beyond that, it waited for the "
                "batch before.",
                "docs/policy.md#what-waiting-saves",
                "s",
            ),
            Query(_quantile(0.5, "oldest_wait_seconds"), "median"),
            Query(_quantile(0.99, "oldest_wait_seconds"), "99th percentile"),
            Query(_gauge("longest_wait_seconds"), "longest at a free device {{replica}}", True),
        ),
        lines(
            About(
                "Why batches start",
                "Batches per second by the reason for which they started.",
                "docs/policy.md",
                "ops",
            ),
            Query(_rate("batches_total", "reason"), "{{reason}}"),
            stacked=True,
        ),
        lines(
            About(
                "Arrival rate",
                "The estimate by which a replica looks its policy up.",
                "docs/policy.md",
                "reqps",
            ),
            Query(_gauge("arrival_rate_rows_per_second"), "{{replica}}"),
        ),
    ]


def _batches() -> list[Any]:
    batches = _rate("batches_total")
    return [
        buckets(
            About(
                "Batch sizes",
                "Rows per batch. A random sample of a busy second.",
                "docs/metrics.md",
                "none",
            ),
            Query(_rate("batch_size_rows_bucket", "le"), "{{le}}"),
        ),
        lines(
            About(
                "Mean batch",
                "Rows per batch: completed rows over batches, from exact counters.",
                "docs/metrics.md",
                "none",
            ),
            Query(f"{_rate('completed_rows_total')} / {batches}", "{{replica}}"),
        ),
        lines(
            About(
                "Full batch: fitted beside profiled",
                "Time of the largest batch by the profile now believed, and by the one that the "
                "replica started with (dashed). Where they differ, the device is not what was "
                "profiled: the replica has fitted its profile to the batches that it ran.",
                "docs/design.md#adapting-to-reality",
                "s",
            ),
            Query(_gauge("full_batch_seconds"), "fitted {{replica}}"),
            Query(_gauge("profiled_full_batch_seconds"), "profiled {{replica}}", dashed=True),
        ),
        lines(
            About(
                "Batch time",
                "Mean time of a batch on the device, from exact counters, and percentiles within "
                "the histogram's buckets.",
                "docs/metrics.md",
                "s",
            ),
            Query(f"{_rate('device_busy_seconds_total')} / {batches}", "mean {{replica}}"),
            Query(_quantile(0.5, "batch_duration_seconds"), "median"),
            Query(_quantile(0.99, "batch_duration_seconds"), "99th percentile"),
        ),
        lines(
            About(
                "Corrections and failures",
                "How often the profile was fitted again, and how often no policy was found, since "
                "the replica started.",
                "docs/operations.md#sojournsolverfails",
                "none",
            ),
            Query(_gauge("profile_refits_total"), "refits {{replica}}"),
            Query(_gauge("solver_failures_total"), "solver failures {{replica}}"),
        ),
        lines(
            About(
                "Power",
                "Energy of the batches per second, measured by the device or told by the profile.",
                "docs/policy.md#what-waiting-saves",
                "watt",
            ),
            Query(_rate("energy_joules_total"), "{{replica}}"),
        ),
    ]


def _stages() -> list[Any]:
    front, device = (
        f'sum by (replica) (ray_sojourn_bottleneck{{{REPLICAS}, stage="{stage}"}})'
        for stage in ("front", "device")
    )
    return [
        states(
            About(
                "What limits each replica",
                "The stage that spends more time per request: the front or the device. Neither: "
                "something else uses the replica's CPUs, and predictions do not hold.",
                "docs/operations.md#sojournslaburnsfast",
                "none",
            ),
            Query(f"{device} + 2 * {front}", "{{replica}}"),
            names=_LIMITS,
        ),
        lines(
            About(
                "Use of front and device",
                "Share of the time for which the event loop had work, and for which a batch was "
                "on the device.",
                "docs/policy.md#what-requests-cost-the-front",
                "percentunit",
            ),
            Query(_rate("device_busy_seconds_total"), "device {{replica}}"),
            Query(_gauge("front_utilization_ratio"), "front {{replica}}"),
        ),
        lines(
            About(
                "Longest turn of the event loop",
                "The longest that the event loop kept anything waiting in the last second.",
                "docs/debugging.md",
                "s",
            ),
            Query(_gauge("loop_lag_seconds"), "{{replica}}"),
        ),
        lines(
            About(
                "Bodies of unanswered requests",
                "A replica refuses large bodies before they fill its memory.",
                "docs/design.md#clients-that-are-slow-greedy-or-hostile",
                "bytes",
            ),
            Query(_gauge("body_bytes"), "{{replica}}"),
        ),
    ]


def _answers() -> list[Any]:
    return [
        lines(
            About(
                "Response time of each replica: p99 predicted beside measured",
                "The last second's 99th percentile, and the one that the replica's model "
                "predicts at its present load (dashed).",
                "docs/response_times.md",
                "s",
            ),
            Query(
                _gauge("measured_response_time_seconds", 'percentile="99"'), "measured {{replica}}"
            ),
            Query(
                _gauge("predicted_response_time_seconds", 'percentile="99"'),
                "predicted {{replica}}",
                dashed=True,
            ),
        ),
        buckets(
            About(
                "Response times",
                "From the arrival of a request at its replica to its answer. A random sample of a "
                "busy second.",
                "docs/metrics.md",
                "s",
            ),
            Query(_rate("response_time_seconds_bucket", "le"), "{{le}}"),
        ),
    ]
