"""The board of pipelines: what each stage does, and what limits the whole."""

from typing import Any

from monitoring.panels import APPLICATION, About, Query, board, lines

_PIPELINE = f'{APPLICATION}, pipeline=~"$pipeline"'
_STAGES = f'{_PIPELINE}, stage=~"$stage"'


def _now(metric: str) -> str:
    return f"sum by (stage) (ray_sojourn_stage_{metric}{{{_STAGES}}})"


def _rate(metric: str) -> str:
    return f"sum by (stage) (rate(ray_sojourn_stage_{metric}{{{_STAGES}}}[$__rate_interval]))"


def pipeline_board() -> dict[str, Any]:
    """Return the board as JSON-ready content."""
    return board(
        "sojourn-pipeline",
        "Sojourn: pipelines and stages",
        "What becomes of requests, and which stage limits the pipeline?",
        {"Requests": _requests(), "Stages": _stages(), "Batches": _batches()},
        ["application", "pipeline", "stage"],
        present="ray_sojourn_stage_workers",
    )


def _requests() -> list[Any]:
    requests = f"rate(ray_sojourn_pipeline_requests_total{{{_PIPELINE}}}[$__rate_interval])"
    measured = f"ray_sojourn_pipeline_measured_response_time_seconds{{{_PIPELINE}}}"
    expected = f"ray_sojourn_pipeline_expected_response_time_seconds{{{_PIPELINE}}}"
    return [
        lines(
            About(
                "Response time: expected beside measured",
                "Percentiles of the last ten seconds, and what a request that comes now should "
                "take, by which it is admitted (dashed); of the slowest replica.",
                "docs/pipelines.md#refusing-and-time",
                "s",
            ),
            Query(f"max by (percentile) ({measured})", "p{{percentile}}"),
            Query(f"max by (pipeline) ({expected})", "expected {{pipeline}}", dashed=True),
        ),
        lines(
            About(
                "What became of requests",
                "Requests per second that ended, by how. Refused ones may have been answered by "
                "another replica.",
                "docs/pipelines.md#refusing-and-time",
                "reqps",
            ),
            Query(f"sum by (outcome) ({requests})", "{{outcome}}"),
            stacked=True,
        ),
        lines(
            About(
                "Requests in the pipeline",
                "Admitted and not yet answered, in all stages together.",
                "docs/pipelines.md#refusing-and-time",
                "none",
            ),
            Query(
                f"sum by (pipeline) (ray_sojourn_pipeline_open_requests{{{_PIPELINE}}})",
                "{{pipeline}}",
            ),
        ),
    ]


def _stages() -> list[Any]:
    return [
        lines(
            About(
                "Use of workers",
                "Share of the time for which the workers of a stage had batches. The highest one "
                "limits the pipeline.",
                "docs/pipelines.md#scaling",
                "percentunit",
            ),
            Query(f"{_rate('busy_seconds_total')} / {_now('workers')}", "{{stage}}"),
        ),
        lines(
            About(
                "Offered and completed",
                "Items per second that arrived at a stage, and that it computed (dashed). Where "
                "they differ, items wait, are given up, or fail.",
                "docs/pipelines.md#refusing-and-time",
                "ops",
            ),
            Query(_rate("items_total"), "offered {{stage}}"),
            Query(_rate("completed_items_total"), "completed {{stage}}", dashed=True),
        ),
        lines(
            About(
                "Waiting",
                "Items in the queue of each stage, at the moment of the scrape.",
                "docs/pipelines.md#refusing-and-time",
                "none",
            ),
            Query(_now("queue_length_items"), "{{stage}}"),
        ),
        lines(
            About(
                "Workers",
                "Workers of each stage, and those with a batch (dashed).",
                "docs/pipelines.md#scaling",
                "none",
            ),
            Query(_now("workers"), "workers {{stage}}"),
            Query(_now("busy_workers"), "busy {{stage}}", dashed=True),
        ),
    ]


def _batches() -> list[Any]:
    batches = _rate("batches_total")
    return [
        lines(
            About(
                "Batch time: believed beside measured",
                "Mean time of a batch, and what its profile, as it is believed now, says of the "
                "same batches (dashed). Profiles are corrected where the two differ.",
                "docs/pipelines.md#how-long-it-takes",
                "s",
            ),
            Query(f"{_rate('busy_seconds_total')} / {batches}", "measured {{stage}}"),
            Query(
                f"{_rate('believed_busy_seconds_total')} / {batches}", "believed {{stage}}", True
            ),
        ),
        lines(
            About(
                "Mean batch",
                "Items per batch, from exact counters.",
                "docs/pipelines.md#how-long-it-takes",
                "none",
            ),
            Query(f"{_rate('batched_items_total')} / {batches}", "{{stage}}"),
        ),
        lines(
            About(
                "Workers lost",
                "Batches per second whose worker died or hung. Each is replaced, and the items "
                "run once more.",
                "docs/pipelines.md#failing",
                "ops",
            ),
            Query(_rate("lost_workers_total"), "{{stage}}"),
        ),
    ]
