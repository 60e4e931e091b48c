"""The report of simulated runs: one HTML file without external resources."""

from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from autoscaler.simulator.reporting import plots
from autoscaler.simulator.reporting.comparison import (
    Comparison,
    beside_prediction,
    in_joules,
    percent,
    three_digits,
    times_oracle,
)
from autoscaler.simulator.results import WINDOW_S
from autoscaler.sizing.service_estimator import ServicePrediction


def render(
    comparison: Comparison, title: str, command: str, predicted: ServicePrediction | None = None
) -> str:
    """Render the page as HTML, the same for the same input; `command` makes the same page again."""
    first = comparison.row(comparison.runs[0])
    return (
        environment()
        .get_template("report.html")
        .render(
            title=title,
            command=command,
            sla=comparison.objective.in_words(),
            first=first,
            rows=comparison.rows,
            is_oracle=comparison.is_oracle,
            percentiles=_percentiles(comparison),
            columns={
                "windows": comparison.seconds >= 2 * WINDOW_S,
                "over_oracle": comparison.oracle is not None,
                "energy": any(row.energy_j is not None for row in comparison.rows),
                "scalings": any(row.scalings_per_hour for row in comparison.rows),
            },
            requests=float(comparison.runs[0].offered.sum()),
            predicted=beside_prediction(comparison, predicted) if predicted else [],
            sections=_sections(comparison, predicted),
        )
    )


def environment() -> Environment:
    pages = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {
        "percent": percent,
        "joules": in_joules,
        "times_oracle": times_oracle,
        "number": lambda value: "-" if value is None else three_digits(value),
    }
    return pages


def _percentiles(comparison: Comparison) -> list[str]:
    """Return the percentiles that the table shows: 99, and the SLA's own if rows have it."""
    known = comparison.rows[0].response_percentiles_ms
    shown = {"99", f"{comparison.objective.percentile:g}"}
    return [name for name in known if name in shown]


def _sections(
    comparison: Comparison, predicted: ServicePrediction | None
) -> list[tuple[str, plots.Picture, str]]:
    """Return the heading, the picture and the caption of each section."""
    oracle = comparison.oracle and comparison.label(comparison.oracle)
    behind = f" Gray: the replicas of {oracle}." if oracle else ""
    sized = any(np.isfinite(run.forecast_per_s).any() for run in comparison.runs)
    sections = [
        (
            "The load and its forecasts" if sized else "The load",
            plots.load(comparison),
            "Gray: requests that clients sent."
            + (" Lines: the arrival rates that autoscalers sized for." if sized else ""),
        ),
        (
            "Replicas over time",
            plots.replicas(comparison),
            f"Solid: replicas that served. Dashed: ordered, starting ones included.{behind} "
            "All rows share one scale, except those with far more replicas.",
        ),
        (
            "Response times",
            plots.response_times(comparison, predicted.cdf if predicted else None),
            "Share of all requests that were not answered within the time; refused ones never are. "
            "A curve that enters the shaded corner misses the SLA.",
        ),
    ]
    return [section for section in sections if section[1] is not None]
