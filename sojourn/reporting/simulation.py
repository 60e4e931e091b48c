"""Output of `sojourn simulate`: tables, JSON content, and the setting in words."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from autoscaler.simulator.autoscalers.fixed import FixedFleet
from autoscaler.simulator.reporting.comparison import (
    Comparison,
    beside_prediction,
    in_joules,
    percent,
    predicted_percentiles_ms,
    three_digits,
    times_oracle,
)
from autoscaler.sizing.service_estimator import ServicePrediction
from sojourn.output import print_table


def content(
    comparison: Comparison,
    predicted: ServicePrediction | None,
    replicas: int | None,
    least: int | None,
) -> dict[str, Any]:
    rows = {row.name: asdict(row) for row in comparison.rows}
    content: dict[str, Any] = {
        "sla": asdict(comparison.objective),
        "requests": int(comparison.runs[0].offered.sum()),
        "seconds": comparison.seconds,
        "autoscalers": {run.name: rows[run.name] for run in comparison.runs},
    }
    if replicas is not None:
        # At a constant rate the oracle runs the least number of replicas that meets the SLA.
        rows[FixedFleet.name]["over_oracle"] = None if least is None else replicas / least
        content["least_replicas"] = least
        content["predicted"] = predicted and {
            "service_level": predicted.service_level,
            "response_percentiles_ms": predicted_percentiles_ms(predicted),
            "mean_power_w": predicted.mean_power_w,
            "bottleneck": predicted.bottleneck,
        }
    return content


def print_comparison(
    comparison: Comparison,
    predicted: ServicePrediction | None,
    replicas: int | None,
    least: int | None,
) -> None:
    """Print the runs side by side, or one run with its prediction."""
    if replicas is None:
        _print_side_by_side(comparison)
        return
    _print_beside_prediction(comparison, predicted)
    click.echo(
        "According to the model, no allowed number of replicas meets the SLA."
        if least is None
        else f"According to the model, the SLA needs {least}, batching as a live replica does."
    )


def _print_side_by_side(comparison: Comparison) -> None:
    requests = comparison.runs[0].offered.sum()
    oracle = "\N{MULTIPLICATION SIGN} oracle"
    print_table(
        ("autoscaler", "SLA", "in time", "minutes", "replica-h", oracle, "energy"),
        [
            (
                row.label,
                "kept" if row.keeps_sla else "missed",
                percent(row.service_level),
                percent(row.compliant_windows),
                three_digits(row.replica_seconds / 3600),
                times_oracle(row),
                in_joules(row.energy_j),
            )
            for row in comparison.rows
        ],
        title=f"{requests:,.0f} requests in {comparison.seconds / 60:.4g} minutes, "
        f"{comparison.objective.in_words()}",
    )


def print_most_power(comparison: Comparison) -> None:
    rows = (f"{row.label} {three_digits(row.most_power_w or 0.0)} W" for row in comparison.rows)
    click.echo(f"Mean power of a minute, at most: {', '.join(rows)}")


def _print_beside_prediction(comparison: Comparison, predicted: ServicePrediction | None) -> None:
    (row,) = comparison.rows
    print_table(
        ("", "predicted", "simulated"),
        beside_prediction(comparison, predicted),
        title=f"{comparison.runs[0].offered.sum():,.0f} requests, {row.label}, "
        f"{comparison.objective.in_words()}",
    )


def load_in_words(trace_file: Path | None, scale: float, arrival_rate: float | None) -> str:
    """Return a description of the load: a trace, or Poisson arrivals."""
    if trace_file is None:
        return f"Poisson arrivals, {arrival_rate:g} requests/s"
    return trace_file.name + (f" \N{MULTIPLICATION SIGN} {scale:g}" if scale != 1 else "")
