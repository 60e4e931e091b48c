"""Comparison of autoscalers: compliance with the SLA, and cost relative to the oracle."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from autoscaler.simulator.results import Run
from autoscaler.sizing.service_estimator import ServicePrediction
from policy.objective import ServiceLevelObjective

#: Percentiles of the response time in a row.
PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True)
class Row:
    """The summary of one run.

    `replica_seconds` are paid for, from an order until the replica was gone; `over_oracle` is None
    without an oracle, `energy_j` and `most_power_w`, of any minute, if the profile has none, a
    percentile if nothing was answered.
    What was `refused` was so by every try. The stage that was busy for longer is the `bottleneck`.
    """

    name: str
    label: str
    keeps_sla: bool
    service_level: float
    compliant_windows: float
    replica_seconds: float
    over_oracle: float | None
    energy_j: float | None
    most_power_w: float | None
    response_percentiles_ms: Mapping[str, float | None]
    scalings_per_hour: float
    refused: float
    bottleneck: str = "device"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs on the same arrivals under the same SLA, and the oracle that cost is measured against.

    Labels are for people, by name.
    """

    runs: tuple[Run, ...]
    oracle: Run | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def objective(self) -> ServiceLevelObjective:
        return self.runs[0].objective

    @property
    def seconds(self) -> int:
        return int(self.runs[0].offered.size)

    def label(self, run: Run) -> str:
        return self.labels.get(run.name, run.name)

    def is_oracle(self, name: str) -> bool:
        return self.oracle is not None and name == self.oracle.name

    def row(self, run: Run) -> Row:
        oracle_s = self.oracle.paid_replica_s if self.oracle else 0.0
        energy_j = float(run.energy_j.sum())
        percentiles = {f"{p:g}": run.response_percentile_ms(p) for p in PERCENTILES}
        return Row(
            name=run.name,
            label=self.label(run),
            keeps_sla=run.service_level >= self.objective.least_level,
            service_level=run.service_level,
            compliant_windows=run.compliant_windows,
            replica_seconds=run.paid_replica_s,
            over_oracle=run.paid_replica_s / oracle_s if oracle_s else None,
            energy_j=energy_j if math.isfinite(energy_j) else None,
            most_power_w=run.most_power_w if math.isfinite(energy_j) else None,
            response_percentiles_ms={
                name: value if math.isfinite(value) else None for name, value in percentiles.items()
            },
            scalings_per_hour=run.scalings_per_hour,
            refused=float(run.refused.sum()),
            bottleneck=run.bottleneck,
        )

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The summaries of all runs, the cheapest first."""
        return tuple(sorted(map(self.row, self.runs), key=lambda row: row.replica_seconds))


def predicted_percentiles_ms(predicted: ServicePrediction | None) -> dict[str, float]:
    """Return the predicted response time by each of `PERCENTILES`; empty if it is not known."""
    if predicted is None or predicted.answered_percentile_ms is None:
        return {}
    return {f"{p:g}": predicted.answered_percentile_ms(p) for p in PERCENTILES}


def beside_prediction(
    comparison: Comparison, predicted: ServicePrediction | None
) -> list[tuple[str, str, str]]:
    """Return the name, the prediction and the simulated value of each figure of a single run."""
    row = comparison.row(comparison.runs[0])
    model_ms = predicted_percentiles_ms(predicted)

    def known(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    lines = [
        (
            "in time",
            known(predicted.service_level if predicted else None, ".3%"),
            known(row.service_level, ".3%"),
        )
    ]
    lines += [
        (f"p{p} ms", known(model_ms.get(p), ".4g"), known(ms, ".4g"))
        for p, ms in row.response_percentiles_ms.items()
    ]
    if row.energy_j is not None:
        power_w = predicted.mean_power_w if predicted else None
        simulated_w = row.energy_j / comparison.seconds
        lines.append(("mean power W", known(power_w, ".4g"), known(simulated_w, ".4g")))
    lines.append(("bottleneck", predicted.bottleneck if predicted else "-", row.bottleneck))
    return lines


def percent(share: float) -> str:
    """Format a share, truncated rather than rounded, so that less than all is never 100%.

    The number of decimals grows with the number of nines: 98.5%, 99.4%, 99.92%, at most 99.996%.
    """
    if share <= 0 or share >= 1:
        return "0%" if share <= 0 else "100%"
    digits = max(1, min(3, math.floor(-math.log10(1 - share) + 1e-9) - 1))
    truncated = math.floor(share * 100 * 10**digits + 1e-9) / 10**digits
    return f"{truncated:.{digits}f}%" if truncated else "under 0.1%"


def times_oracle(row: Row) -> str:
    """Format the cost relative to the oracle's."""
    return "-" if row.over_oracle is None else f"{row.over_oracle:.2f}\N{MULTIPLICATION SIGN}"


def in_joules(energy_j: float | None) -> str:
    """Format an energy in a suitable unit."""
    if energy_j is None:
        return "-"
    for unit, size in (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3)):
        if energy_j >= size:
            return f"{three_digits(energy_j / size)} {unit}"
    return f"{three_digits(energy_j)} J"


def three_digits(value: float) -> str:
    """Format a number with three significant digits, or as an integer if it has more."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"
