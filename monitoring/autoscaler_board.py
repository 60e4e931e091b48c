"""The board of the autoscaler and the model store: why there are as many replicas as there are."""

from typing import Any

from monitoring.panels import (
    BLUE,
    FLEET,
    GREEN,
    ORANGE,
    RED,
    YELLOW,
    About,
    Query,
    board,
    lines,
    number,
    states,
)

_BY = "sum by (application, deployment)"
#: What keeps the number of replicas from what the demand requires: each has a color.
_CAUSES = {
    value: ("yes" if value else "no", color)
    for value, color in enumerate((GREEN, BLUE, YELLOW, ORANGE, RED))
}


def _gauge(name: str) -> str:
    return f"{_BY} (ray_sojourn_autoscaler_{name}{{{FLEET}}})"


def _store(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate(sojourn_store_{metric}_total[$__rate_interval]))"


def autoscaler_board() -> dict[str, Any]:
    """Return the board as JSON-ready content."""
    return board(
        "sojourn-autoscaler",
        "Sojourn: autoscaler and model store",
        "Why are there as many replicas as there are, was that right, and how fast do they start?",
        {
            "Replicas, and why": _replicas(),
            "Is the model right?": _model(),
            "Starts": _starts(),
            "Model store": _stores(),
        },
        ["application", "deployment"],
    )


def _replicas() -> list[Any]:
    serving = f"count by (application, deployment) (ray_sojourn_sla_percentile_ratio{{{FLEET}}})"
    decided, required = _gauge("replicas_decided"), _gauge("replicas_required")
    return [
        lines(
            About(
                "Demand beside what is offered",
                "What clients offer now, the forecast for when a replica ordered now has started, "
                "and what replicas are sized for: the forecast with its margin, the burst factor "
                "and the backlog. Capacity is what the replicas that serve take within the SLA.",
                "docs/autoscaling.md#the-steps",
                "reqps",
            ),
            Query(_gauge("offered_requests_per_second"), "offered"),
            Query(_gauge("forecast_requests_per_second"), "forecast", dashed=True),
            Query(_gauge("demand_requests_per_second"), "demand", dashed=True),
            Query(
                f"{serving} * {_gauge('sla_rate_requests_per_second')}",
                "capacity within the SLA",
                dashed=True,
            ),
        ),
        lines(
            About(
                "Replicas: needed, ordered, serving",
                "What the demand requires, what the autoscaler decided on after holds and budgets, "
                "and the replicas that serve.",
                "docs/autoscaling.md#the-steps",
                "none",
            ),
            Query(serving, "serving"),
            Query(decided, "ordered"),
            Query(required, "needed", dashed=True),
        ),
        states(
            About(
                "What decides the number",
                "Why the number ordered is not the number needed. Held above: scale-in waits, or "
                "the minimum holds. Kept below: the maximum, a budget or the cores. The sentence "
                "behind each decision is at /sojourn/autoscaler and in `sojourn top`.",
                "docs/autoscaling.md#reading-a-decision",
                "none",
            ),
            Query(f"{decided} > bool {required}", "held above the need"),
            Query(f"2 * ({decided} < bool {required})", "kept below the need"),
            Query(f"3 * ({_gauge('silent_replicas')} > bool 0)", "replicas do not report"),
            Query(f"4 * ({_gauge('stuck_replicas')} > bool 0)", "replicas do not start"),
            names=_CAUSES,
        ),
        lines(
            About(
                "Stuck, silent, waiting",
                "Replicas that do not start, replicas that do not report, and requests that wait "
                "beyond what is normal.",
                "docs/operations.md#sojournreplicasstuck",
                "none",
            ),
            Query(_gauge("stuck_replicas"), "stuck replicas"),
            Query(_gauge("silent_replicas"), "silent replicas"),
            Query(_gauge("backlog_requests"), "backlog (requests)"),
        ),
    ]


def _model() -> list[Any]:
    return [
        lines(
            About(
                "Model error",
                "Measured minus predicted share of late requests. Above 0, more are late than the "
                "model says; an alert looks at 5 points.",
                "docs/operations.md#sojournpredictionwrong",
                "percentunit",
            ),
            Query(_gauge("model_error_ratio"), "measured - predicted"),
            least=None,
            steps=((None, GREEN), (0.05, RED)),
        ),
        lines(
            About(
                "Load that one replica takes",
                "The highest rate at which one replica keeps the SLA: the model's figure times "
                "the correction learned from what was late.",
                "docs/autoscaling.md#the-steps",
                "reqps",
            ),
            Query(_gauge("sla_rate_requests_per_second"), "corrected"),
            Query(
                f"{_gauge('sla_rate_requests_per_second')} / {_gauge('model_correction_ratio')}",
                "by the model alone",
                dashed=True,
            ),
        ),
        number(
            About(
                "Correction",
                "Factor on the model's SLA rate; 1 means that the model is right.",
                "docs/autoscaling.md#reading-a-decision",
                "none",
            ),
            Query(_gauge("model_correction_ratio"), "{{deployment}}"),
            span=6,
            steps=((None, RED), (0.7, YELLOW), (0.9, GREEN)),
        ),
        number(
            About(
                "Predicted in time",
                "Predicted share of requests in time, with the replicas decided on.",
                "docs/autoscaling.md#reading-a-decision",
                "percentunit",
            ),
            Query(_gauge("predicted_service_level_ratio"), "{{deployment}}"),
            span=6,
        ),
        number(
            About(
                "Forecast looks ahead",
                "The time that a replica takes to start, and the decision with it.",
                "docs/forecasts.md",
                "s",
            ),
            Query(_gauge("horizon_seconds"), "{{deployment}}"),
            span=6,
        ),
        number(
            About(
                "Between two reports",
                "How old what the autoscaler knows of a replica may be.",
                "docs/autoscaling.md#limits",
                "s",
            ),
            Query(_gauge("report_interval_seconds"), "{{deployment}}"),
            span=6,
        ),
    ]


def _starts() -> list[Any]:
    phases = f"max by (phase) (ray_sojourn_start_seconds{{{FLEET}}})"
    return [
        lines(
            About(
                "What starts are spent on",
                "The slowest start of the replicas that serve, by phase. The autoscaler looks as "
                "far ahead as starts take, so faster starts mean smaller margins.",
                "docs/model_store.md#what-a-start-takes",
                "s",
            ),
            Query(phases, "{{phase}}"),
            stacked=True,
        ),
        lines(
            About(
                "Start time of each replica",
                "All phases together, beside the horizon of the forecast.",
                "docs/model_store.md#what-a-start-takes",
                "s",
            ),
            Query(f"sum by (replica) (ray_sojourn_start_seconds{{{FLEET}}})", "{{replica}}"),
            Query(_gauge("horizon_seconds"), "horizon", dashed=True),
        ),
    ]


def _stores() -> list[Any]:
    page = "docs/model_store.md"
    return [
        lines(
            About(
                "Tiers: used beside budget",
                "Bytes in each tier of the managers that Prometheus scrapes, and what it may hold "
                "(dashed).",
                f"{page}#use-it",
                "bytes",
            ),
            Query("sum by (tier) (sojourn_store_used_bytes)", "{{tier}} used"),
            Query("sum by (tier) (sojourn_store_budget_bytes)", "{{tier}} budget", dashed=True),
        ),
        lines(
            About(
                "Opens that found their model",
                "Share of the opens that found the whole model in the tier.",
                f"{page}#how-it-works",
                "percentunit",
            ),
            Query(
                f"{_store('hits', 'tier')} / ({_store('hits', 'tier')}"
                f" + {_store('misses', 'tier')})",
                "{{tier}}",
            ),
        ),
        lines(
            About(
                "Evictions, refusals, waiting",
                "Blobs that leave a tier per second. Many from the memory: replicas start slowly.",
                "docs/operations.md#sojournstorethrashes",
                "none",
            ),
            Query(_store("evictions", "tier"), "evicted from {{tier}} (1/s)"),
            Query("sum(rate(sojourn_store_refused_total[$__rate_interval]))", "refused (1/s)"),
            Query("sum(sojourn_store_waiting)", "opens that wait"),
        ),
        lines(
            About(
                "Speed of copies",
                "Bytes per second of copying between tiers.",
                f"{page}#how-fast",
                "Bps",
            ),
            Query(
                f"{_store('copied_bytes', 'source, target')}"
                f" / {_store('copy_seconds', 'source, target')}",
                "{{source}} to {{target}}",
            ),
        ),
    ]
