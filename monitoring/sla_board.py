"""The board of a service's owner: the SLA, its budget, and what was promised beside what came."""

from typing import Any

from monitoring.panels import (
    APPLICATION,
    GREEN,
    ORANGE,
    RED,
    YELLOW,
    About,
    Query,
    board,
    lines,
    number,
)

#: What of the budget a burn rate uses up: as in `rules.yaml`, 14.4 pages and 6 makes a ticket.
_BURN_STEPS = ((None, GREEN), (1.0, YELLOW), (6.0, ORANGE), (14.4, RED))
_BUDGET_STEPS = ((None, RED), (0.0, ORANGE), (0.25, YELLOW), (0.5, GREEN))
_BUDGET = f"sojourn:sla_budget:ratio{{{APPLICATION}}}"
#: The share that was late over 28 days, each request with the same weight.
_MISSED_28D = (
    f"sum_over_time(sojourn:late_rows:rate5m{{{APPLICATION}}}[28d])"
    f" / sum_over_time(sojourn:answered_rows:rate5m{{{APPLICATION}}}[28d])"
)


def _missed(window: str) -> str:
    """Return the share that was late; 0 where nothing was answered, which records nothing."""
    recorded = f"sojourn:sla_miss:ratio_rate{window}{{{APPLICATION}}}"
    # `max by` drops the name of the metric, so that both make one line.
    return f"(max by (application) ({recorded}) or 0 * {_BUDGET})"


def _rate(metric: str) -> str:
    return f"sum(rate(ray_sojourn_{metric}_total{{{APPLICATION}}}[$__rate_interval]))"


def _percentile(kind: str, percentile: int) -> str:
    selected = f'{APPLICATION}, percentile="{percentile}"'
    return f"avg(avg_over_time(ray_sojourn_{kind}_response_time_seconds{{{selected}}}[1m]))"


def sla_board() -> dict[str, Any]:
    """Return the board as JSON-ready content."""
    return board(
        "sojourn-sla",
        "Sojourn: SLA",
        "Is the SLA kept, what is left of its budget, and does the model that promised it hold?",
        {
            "The SLA": _now(),
            "The model beside the world": _model(),
            "Load, and what became of it": _load(),
            "The budget": _budget(),
        },
        ["application"],
    )


def _now() -> list[Any]:
    page = "docs/operations.md"
    return [
        number(
            About("SLA", "Share of requests that must be in time.", "README.md", "percentunit"),
            Query(f"max(ray_sojourn_sla_percentile_ratio{{{APPLICATION}}})", "must be in time"),
            span=3,
        ),
        number(
            About("within", "Response time of the SLA in force.", "README.md", "s"),
            Query(f"max(ray_sojourn_sla_response_time_seconds{{{APPLICATION}}})", "within"),
            span=3,
        ),
        number(
            About(
                "In time, last 5 minutes",
                "Share of the answers that were in time, as their replicas measure it.",
                page,
                "percentunit",
            ),
            Query(f"1 - {_missed('5m')}", "in time"),
        ),
        number(
            About(
                "In time, 28 days",
                "The same over 28 days, or as long as Prometheus keeps what it recorded; each "
                "request has the same weight.",
                "docs/dashboards.md#28-days",
                "percentunit",
            ),
            Query(f"1 - {_MISSED_28D}", "in time"),
        ),
        number(
            About(
                "Budget left, 28 days",
                "What is left of the share of requests that may be late in 28 days: 0 when it is "
                "used up, below 0 when the SLA is broken.",
                "docs/dashboards.md#28-days",
                "percentunit",
            ),
            Query(f"1 - {_MISSED_28D} / {_BUDGET}", "left"),
            span=5,
            steps=_BUDGET_STEPS,
        ),
        number(
            About(
                "Burn rate, 1 hour",
                "How many times faster than allowed the budget is used. At 14.4, 2% of a month's "
                "budget goes in an hour, and somebody is paged.",
                page,
                "none",
            ),
            Query(f"{_missed('1h')} / {_BUDGET}", "times the budget"),
            span=5,
            steps=_BURN_STEPS,
        ),
    ]


def _model() -> list[Any]:
    return [
        lines(
            About(
                "99th percentile: predicted beside measured",
                "What the replicas' model predicts at the present load (dashed) and what they "
                "measure, a mean over replicas and a minute, with the SLA. The prediction is for "
                "Poisson arrivals and is missing near a replica's capacity.",
                "docs/response_times.md",
                "s",
            ),
            Query(_percentile("measured", 99), "measured p99"),
            Query(_percentile("predicted", 99), "predicted p99", dashed=True),
            Query(
                f"max(ray_sojourn_sla_response_time_seconds{{{APPLICATION}}})", "SLA", dashed=True
            ),
        ),
        lines(
            About(
                "Median and 95th percentile: predicted beside measured",
                "As on the left.",
                "docs/response_times.md",
                "s",
            ),
            Query(_percentile("measured", 95), "measured p95"),
            Query(_percentile("predicted", 95), "predicted p95", dashed=True),
            Query(_percentile("measured", 50), "measured p50"),
            Query(_percentile("predicted", 50), "predicted p50", dashed=True),
        ),
        lines(
            About(
                "In time: promised beside kept",
                "The share of requests in time that the autoscaler predicts for the replicas it "
                "decided on (dashed), the share that was, and the SLA.",
                "docs/autoscaling.md",
                "percentunit",
            ),
            Query(f"1 - {_missed('5m')}", "kept, 5 minutes"),
            Query(
                f"min(ray_sojourn_autoscaler_predicted_service_level_ratio{{{APPLICATION}}})",
                "promised",
                dashed=True,
            ),
            Query(f"max(ray_sojourn_sla_percentile_ratio{{{APPLICATION}}})", "SLA", dashed=True),
            least=None,
        ),
        lines(
            About(
                "What limits the replicas",
                "Number of replicas by what limits them: the front (parsing and answering), the "
                "device (batches), or neither (something else uses their CPUs).",
                "docs/operations.md#sojournslaburnsfast",
                "none",
            ),
            Query(
                f"sum by (stage) (ray_sojourn_bottleneck{{{APPLICATION}}})",
                "{{stage}}",
            ),
            stacked=True,
        ),
    ]


def _load() -> list[Any]:
    return [
        lines(
            About(
                "Offered against completed",
                "Requests that clients offer, each counted once however often it was refused and "
                "tried elsewhere, and rows answered with outputs. With one row per request, the "
                "difference was not answered.",
                "docs/autoscaling.md",
                "reqps",
            ),
            Query(
                f"sum(ray_sojourn_autoscaler_offered_requests_per_second{{{APPLICATION}}})",
                "offered by clients",
                dashed=True,
            ),
            Query(_rate("completed_rows"), "completed"),
        ),
        lines(
            About(
                "Refused, late, failed",
                "Rows per second that were not answered in time. A row that a full replica refused "
                "is tried at another, so refusals alone are no loss.",
                "docs/overload.md",
                "reqps",
            ),
            Query(_rate("refused_rows"), "refused by a replica"),
            Query(_rate("refused_too_late_rows"), "refused: no replica in time"),
            Query(_rate("pruned_rows"), "dropped from the queue"),
            Query(_rate("late_rows"), "late"),
            Query(_rate("cancelled_rows"), "client left"),
            Query(_rate("model_errors"), "model failed"),
        ),
        lines(
            About("Answers by status", "HTTP answers per second.", "docs/http.md", "reqps"),
            Query(
                f"sum by (status) (rate(ray_sojourn_answers_total{{{APPLICATION}}}"
                "[$__rate_interval]))",
                "{{status}}",
            ),
            stacked=True,
        ),
        lines(
            About(
                "What it costs",
                "Replicas that serve, and the power of their batches where the device or the "
                "profile tells their energy.",
                "docs/policy.md",
                "none",
            ),
            Query(f"count(ray_sojourn_sla_percentile_ratio{{{APPLICATION}}})", "replicas"),
            Query(_rate("energy_joules"), "power", unit="watt"),
        ),
    ]


def _budget() -> list[Any]:
    return [
        lines(
            About(
                "Late requests against the budget",
                "Share of the answers that were late, and the share that may be.",
                "docs/operations.md",
                "percentunit",
            ),
            Query(_missed("5m"), "late, 5 minutes"),
            Query(_missed("1h"), "late, 1 hour"),
            Query(_BUDGET, "allowed", dashed=True),
        ),
        lines(
            About(
                "Burn rate by window",
                "An alert needs a long and a short window above its threshold: 1 hour and 5 "
                "minutes above 14.4, or 6 hours and 30 minutes above 6.",
                "docs/operations.md",
                "none",
            ),
            *(
                Query(f"{_missed(window)} / {_BUDGET}", window)
                for window in ("5m", "30m", "1h", "6h")
            ),
            steps=_BURN_STEPS,
        ),
    ]
