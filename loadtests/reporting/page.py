"""The page of a load test: one HTML file without external resources."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import ChoiceLoader, FileSystemLoader

from autoscaler.simulator.reporting.report import environment
from deployments.config.user_config import SLAConfig
from loadtests.records import Records
from loadtests.reporting import charts
from loadtests.reporting.report import per_window
from loadtests.reporting.table import table
from loadtests.schedule import Schedule


@dataclass(frozen=True)
class Setting:
    """The setting of a load test, as text; `command` repeats the test."""

    model: str
    began: str
    command: str
    connections: int
    rows: Sequence[tuple[str, str]]


def render(
    result: Mapping[str, Any],
    seconds: Sequence[dict[str, Any]],
    records: Records,
    schedule: Schedule,
    setting: Setting,
) -> str:
    """Render the page as HTML, the same for the same input.

    `result` is that of `loadtests.reporting.report.report`, with what `sojourn loadtest` adds to
    it: `missed`, `failure_examples`, `service` and `generator_cpu_us`.
    """
    sla = SLAConfig(**result["sla"])
    headings, rows = table(result)
    pages = environment()
    here = FileSystemLoader(Path(__file__).parent)
    assert pages.loader is not None
    pages.loader = ChoiceLoader([here, pages.loader])
    pages.filters["ms"] = _in_ms
    return pages.get_template("loadtest.html").render(
        model=setting.model,
        began=setting.began,
        command=setting.command,
        connections=setting.connections,
        settings=[*setting.rows, ("generator", _generator(result))],
        sla=sla.objective.in_words(),
        verdict=_verdict(result, sla),
        missed=result["missed"],
        result=result,
        headings=headings,
        rows=rows,
        failures=_failures(result),
        sections=_sections(result, seconds, records, schedule, sla),
    )


def _verdict(result: Mapping[str, Any], sla: SLAConfig) -> str:
    share = result["share_within_sla"]
    if share is None:
        return "No request was due."
    # Truncated, so that a miss never looks like the SLA.
    in_time = np.floor(1e4 * share) / 100
    met = "was met" if result["sla_met"] else "was not met"
    return (
        f"The SLA {met}: {in_time:g}% of {result['requests']:,} requests were answered within "
        f"{sla.response_time_ms:g} ms; it requires {sla.percentile:g}%."
    )


def _failures(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    wrong = result["wrong_answers"]
    counts = {**({"wrong": wrong} if wrong else {}), **result["failed"]}
    examples: dict[str, Mapping[str, Any]] = {}
    for example in result["failure_examples"]:
        examples.setdefault(example["kind"], example)
    return [
        {"kind": kind, "count": count, "example": examples.get(kind)}
        for kind, count in counts.items()
    ]


def _sections(
    result: Mapping[str, Any],
    seconds: Sequence[dict[str, Any]],
    records: Records,
    schedule: Schedule,
    sla: SLAConfig,
) -> list[dict[str, Any]]:
    service = result["service"]
    window_s, windows = per_window(records, schedule, sla)
    compared = _compared(result)
    replicas = any(one["replicas"] for one in service)
    sections: list[dict[str, Any]] = [
        {
            "heading": "Load and replicas" if replicas else "Load",
            "caption": "Requests in each second. Gray: due, whether or not the service kept up."
            + (
                " Dashed: the rate that the autoscaler sized for. Below: the replicas it ordered."
                if any(one["demand_per_s"] for one in service)
                else ""
            ),
            "picture": charts.load(seconds, service),
        },
        {
            "heading": "Response times",
            "caption": f"Solid: measured, in windows of {window_s:g} s."
            + (
                " Dashed: predicted meanwhile by the service, from its model of the arrivals that "
                "it saw."
                if compared
                else " The service provided no predictions (for this token)."
            ),
            "picture": charts.response_times(windows, schedule.duration_s, service, sla),
            "table": [
                ("", "predicted (mean), ms", "measured, ms", "ratio"),
                *compared,
            ]
            if compared
            else None,
        },
        {
            "heading": "In time",
            "caption": "Share of the requests due in each second that were answered within "
            f"{sla.response_time_ms:g} ms.",
            "picture": charts.in_time(seconds, sla),
        },
    ]
    return [{"table": None, **section} for section in sections if section["picture"] is not None]


def _compared(result: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return percentile, its mean prediction, its measurement and their ratio."""
    predictions: dict[str, list[float]] = {}
    for one in result["service"]:
        for name, value_ms in one["predicted_ms"].items():
            predictions.setdefault(name, []).append(value_ms)
    lines = []
    for name, values_ms in predictions.items():
        predicted_ms = float(np.mean(values_ms))
        measured_ms = result["response_percentiles_ms"].get(name)
        if measured_ms is not None:
            ratio = f"{measured_ms / predicted_ms:.2f}"
            lines.append((f"p{name}", f"{predicted_ms:.1f}", f"{measured_ms:.1f}", ratio))
    return lines


def _generator(result: Mapping[str, Any]) -> str:
    lag_ms = result["generator_lag_ms"]["p99"]
    return (
        f"99% of the requests left within {_in_ms(lag_ms)} of when they were due, without waits "
        f"for the service; each cost {result['generator_cpu_us']:.0f} µs of CPU"
    )


def _in_ms(time_ms: float | None) -> str:
    return "–" if time_ms is None else f"{time_ms:.3g} ms"
