"""Autoscalers side by side: what each kept of the SLA, and what it cost beside the oracle."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from simulator.results import WINDOW_S, Run

#: Percentiles of the response time that are given.
PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)

# More than these beside the first would be a list and no sentence.
_TOLD_AT_MOST = 3


@dataclass(frozen=True)
class Row:
    """What one run came to.

    Attributes
    ----------
    name, label : str
        The autoscaler's, for programs and for people.
    keeps_sla : bool
        Whether the service level of the whole run is at least the SLA's.
    service_level : float
        Share of the offered requests that were answered in time.
    compliant_windows : float
        Share of the one-minute windows that met the SLA.
    replica_seconds : float
        From each order until the replica was gone.
    over_oracle : float or None
        `replica_seconds` over the oracle's; None without an oracle.
    energy_j : float or None
        Of the batches; None where it is not known.
    response_percentiles_ms : mapping of str to float or None
        None where no request was answered.
    scalings_per_hour : float
    refused : float
        Requests that every replica tried refused.
    """

    name: str
    label: str
    keeps_sla: bool
    service_level: float
    compliant_windows: float
    replica_seconds: float
    over_oracle: float | None
    energy_j: float | None
    response_percentiles_ms: Mapping[str, float | None]
    scalings_per_hour: float
    refused: float

    def to_dict(self) -> dict[str, Any]:
        """Give the row for JSON."""
        content = dict(vars(self))
        del content["name"]
        content["response_percentiles_ms"] = dict(self.response_percentiles_ms)
        return content


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs on the same arrivals under the same SLA.

    Attributes
    ----------
    runs : tuple of Run
        At least one, in the order in which they were asked for; the oracle's may be among them.
    oracle : Run or None
        What cost is measured against.
    labels : mapping of str to str
        Names for people; a name that is missing stands for itself.

    Raises
    ------
    InvalidInputError
        There is no run, two have one name, or they differ in the SLA or in the seconds.
    """

    runs: tuple[Run, ...]
    oracle: Run | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.runs:
            raise InvalidInputError("comparison: needs at least one run")
        names = [run.name for run in self.runs]
        if len(set(names)) < len(names):
            raise InvalidInputError(f"comparison: each run needs its own name, not {names}")
        first = self.runs[0]
        for run in (*self.runs, self.oracle or first):
            if run.objective != first.objective or run.offered.size != first.offered.size:
                raise InvalidInputError("comparison: runs must share the SLA and the arrivals")

    @property
    def objective(self) -> ServiceLevelObjective:
        """The SLA."""
        return self.runs[0].objective

    @property
    def seconds(self) -> int:
        """Length of the runs."""
        return int(self.runs[0].offered.size)

    def label(self, run: Run) -> str:
        """Give a run's name for people."""
        return self.labels.get(run.name, run.name)

    def is_oracle(self, name: str) -> bool:
        """Tell whether this name is the oracle's."""
        return self.oracle is not None and name == self.oracle.name

    def row(self, run: Run) -> Row:
        """Sum up a run."""
        oracle_s = self.oracle.paid_replica_s if self.oracle else 0.0
        energy_j = float(run.energy_j.sum())
        percentiles = {f"{p:g}": run.response_percentile_ms(p) for p in PERCENTILES}
        return Row(
            name=run.name,
            label=self.label(run),
            keeps_sla=run.service_level >= self.objective.percentile / 100,
            service_level=run.service_level,
            compliant_windows=run.compliant_windows,
            replica_seconds=run.paid_replica_s,
            over_oracle=run.paid_replica_s / oracle_s if oracle_s else None,
            energy_j=energy_j if math.isfinite(energy_j) else None,
            response_percentiles_ms={
                name: value if math.isfinite(value) else None for name, value in percentiles.items()
            },
            scalings_per_hour=run.scalings_per_hour,
            refused=float(run.refused.sum()),
        )

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """All runs, the cheapest first."""
        return tuple(sorted(map(self.row, self.runs), key=lambda row: row.replica_seconds))

    def verdict(self) -> list[str]:
        """Say in a sentence or two what came out, the first-named autoscaler first."""
        rows = {row.name: row for row in self.rows}
        told = [rows[run.name] for run in self.runs if not self.is_oracle(run.name)]
        told = told or list(self.rows)
        by_window = self.seconds >= 2 * WINDOW_S

        def kept(row: Row) -> str:
            return percent(row.compliant_windows if by_window else row.service_level)

        def cost(row: Row) -> str:
            return "" if row.over_oracle is None else f" at {times_oracle(row)}"

        first, *others = told
        sentence = (
            f"{first.label} kept {kept(first)} of the one-minute windows within the SLA"
            if by_window
            else f"{first.label} answered {kept(first)} of the requests in time"
        )
        if first.over_oracle is not None:
            sentence += f"{cost(first)} the oracle's replica-hours"
        if len(others) <= _TOLD_AT_MOST:
            sentence += "".join(
                f"{', ' if number else '; '}{row.label} {kept(row)}{cost(row)}"
                for number, row in enumerate(others)
            )
        return [f"{sentence}.", self._cheapest(told) if others else self._alone(first)]

    def _alone(self, row: Row) -> str:
        kept = "was kept" if row.keeps_sla else "was not kept"
        return (
            f"{self.objective.in_words()} {kept}: "
            f"{percent(row.service_level)} were in time over the whole run."
        )

    def _cheapest(self, told: list[Row]) -> str:
        sla = self.objective.in_words()
        keeping = [row for row in told if row.keeps_sla]
        if not keeping:
            return f"None of them kept {sla} over the whole run."
        best = min(keeping, key=lambda row: row.replica_seconds)
        if len(keeping) == 1:
            return f"Only {best.label} kept {sla} over the whole run."
        return f"Of those that kept {sla} over the whole run, {best.label} cost least."


def percent(share: float) -> str:
    """Write a share, cut and not rounded: what is short of all never reads 100%."""
    if share <= 0 or share >= 1:
        return "0%" if share <= 0 else "100%"
    # One digit more for each nine: 98.5%, 99.4%, 99.92%, 99.996%, and no more.
    digits = max(1, min(3, math.floor(-math.log10(1 - share) + 1e-9) - 1))
    cut = math.floor(share * 100 * 10**digits + 1e-9) / 10**digits
    return f"{cut:.{digits}f}%" if cut else "under 0.1%"


def times_oracle(row: Row) -> str:
    """Write the cost beside the oracle's."""
    return "-" if row.over_oracle is None else f"{row.over_oracle:.2f}\N{MULTIPLICATION SIGN}"


def in_joules(energy_j: float | None) -> str:
    """Write an energy in the unit that suits it."""
    if energy_j is None:
        return "-"
    for unit, size in (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3)):
        if energy_j >= size:
            return f"{three_digits(energy_j / size)} {unit}"
    return f"{three_digits(energy_j)} J"


def three_digits(value: float) -> str:
    """Write a number with three digits, or as a whole number where it has more."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"
