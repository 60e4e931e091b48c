"""What `sojourn simulate` prints: tables for people, and the content of its JSON object."""

from dataclasses import asdict
from typing import Any

import click

from autoscaler.simulator.experiments import FIXED
from autoscaler.simulator.prediction import Predicted
from autoscaler.simulator.reporting.comparison import (
    Comparison,
    in_joules,
    percent,
    three_digits,
    times_oracle,
)
from sojourn.output import print_table


def content(
    comparison: Comparison, predicted: Predicted | None, replicas: int | None, least: int | None
) -> dict[str, Any]:
    """Return the content of the JSON object."""
    rows = {row.name: row.to_dict() for row in comparison.rows}
    content: dict[str, Any] = {
        "sla": asdict(comparison.objective),
        "requests": int(comparison.runs[0].offered.sum()),
        "seconds": comparison.seconds,
        "autoscalers": {run.name: rows[run.name] for run in comparison.runs},
        "verdict": comparison.verdict(),
    }
    if replicas is not None:
        # At a constant rate the oracle runs the least number of replicas that meets the SLA.
        rows[FIXED]["over_oracle"] = None if least is None else replicas / least
        content["least_replicas"] = least
        content["predicted"] = predicted and {
            "service_level": predicted.service_level,
            "response_percentiles_ms": {f"{p:g}": ms for p, ms in predicted.percentiles_ms},
            "mean_power_w": predicted.mean_power_w,
            "bottleneck": predicted.bottleneck,
        }
    return content


def print_comparison(
    comparison: Comparison, predicted: Predicted | None, replicas: int | None, least: int | None
) -> None:
    """Print the runs beside each other, or one beside its prediction."""
    if replicas is None:
        _print_side_by_side(comparison)
    else:
        _print_beside_prediction(comparison, predicted)
    for sentence in comparison.verdict():
        click.echo(sentence)
    if replicas is not None:
        click.echo(
            "According to the model, no allowed number of replicas meets the SLA."
            if least is None
            else f"According to the model, the SLA needs {least}, batching as a live replica does."
        )


def _print_side_by_side(comparison: Comparison) -> None:
    requests = comparison.runs[0].offered.sum()
    print_table(
        (
            "autoscaler",
            "SLA",
            "in time",
            "minutes",
            "replica-h",
            "\N{MULTIPLICATION SIGN} oracle",
            "energy",
        ),
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


def _print_beside_prediction(comparison: Comparison, predicted: Predicted | None) -> None:
    (row,) = comparison.rows
    seen = row.response_percentiles_ms
    model = {} if predicted is None else {f"{p:g}": ms for p, ms in predicted.percentiles_ms}
    model_power_w = None if predicted is None else predicted.mean_power_w
    power_w = None if row.energy_j is None else row.energy_j / comparison.seconds
    level = "-" if predicted is None else f"{predicted.service_level:.3%}"
    lines: list[tuple[object, ...]] = [("in time", level, f"{row.service_level:.3%}")]
    lines += [(f"p{p} ms", model.get(p, "-"), "-" if ms is None else ms) for p, ms in seen.items()]
    if power_w is not None:
        lines.append(("mean power W", "-" if model_power_w is None else model_power_w, power_w))
    model_stage = "-" if predicted is None else predicted.bottleneck
    lines.append(("bottleneck", model_stage, row.bottleneck))
    print_table(
        ("", "predicted", "simulated"),
        lines,
        title=f"{comparison.runs[0].offered.sum():,.0f} requests, {row.label}, "
        f"{comparison.objective.in_words()}",
    )
