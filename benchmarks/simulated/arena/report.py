"""Summary and plots of `benchmarks.simulated.autoscaler`, from the records of its runs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.simulated.arena.runs import Record

BoolArray = NDArray[np.bool_]
CellKey = tuple[str, str, int]

COLORS = {
    "sojourn": "#0072b2",
    "ray": "#d55e00",
    "knative": "#009e73",
    "mdc": "#cc79a7",
    "mark": "#e69f00",
    "peak": "#777777",
}
#: The goal: the fraction of the oracle's windows held, and replica-hours over the oracle's.
GOAL_HELD, GOAL_COST = 0.99, 1.15


@dataclass(frozen=True)
class Row:
    """The outcome of a contender in a cell; each value is the median over seeds.

    Attributes
    ----------
    trace, service : str
    start_time_s : int
    label, family : str
    knob : float or None
    seeds : int
    service_level : float
        Fraction of the offered requests answered in time.
    held : float
        Fraction of the windows that comply, of those that comply under the oracle.
    over_oracle : float
        Replica-hours over those of the oracle that covers every second.
    over_window_oracle : float
        Replica-hours over those of the window oracle.
    energy_over_oracle : float
        Energy of the batches over that of the oracle.
    scalings_per_hour : float
    held_range, over_oracle_range : tuple of (float, float)
        Minimum and maximum over the seeds.
    """

    trace: str
    service: str
    start_time_s: int
    label: str
    family: str
    knob: float | None
    seeds: int
    service_level: float
    held: float
    over_oracle: float
    over_window_oracle: float
    energy_over_oracle: float
    scalings_per_hour: float
    held_range: tuple[float, float]
    over_oracle_range: tuple[float, float]

    @property
    def cell(self) -> CellKey:
        """Trace, service and start time."""
        return self.trace, self.service, self.start_time_s

    @property
    def reaches_goal(self) -> bool:
        """Whether it holds enough windows at no more than the goal's cost."""
        return self.held >= GOAL_HELD and self.over_oracle <= GOAL_COST


def rows(records: Iterable[Record]) -> list[Row]:
    """Sum up the records by cell and contender; the oracles' records must be among them."""
    seeds: dict[tuple[CellKey, str], list[Record]] = defaultdict(list)
    oracles: dict[tuple[CellKey, int, str], Record] = {}
    for record in records:
        cell = (record["trace"], record["service"], record["start_time_s"])
        seeds[cell, record["label"]].append(record)
        if "oracle" in record["family"]:
            oracles[cell, record["seed"], record["family"]] = record

    def row(cell: CellKey, label: str, runs: Sequence[Record]) -> Row:
        by_second = [oracles[cell, run["seed"], "oracle"] for run in runs]
        by_window = [oracles[cell, run["seed"], "window oracle"] for run in runs]
        held = [
            held_share(run["compliant"], oracle["compliant"])
            for run, oracle in zip(runs, by_second, strict=True)
        ]
        cost = _ratios(runs, by_second, "replica_seconds")
        return Row(
            *cell,
            label=label,
            family=runs[0]["family"],
            knob=runs[0]["knob"],
            seeds=len(runs),
            service_level=median(run["service_level"] for run in runs),
            held=median(held),
            over_oracle=median(cost),
            over_window_oracle=median(_ratios(runs, by_window, "replica_seconds")),
            energy_over_oracle=median(_ratios(runs, by_second, "energy_j")),
            scalings_per_hour=median(run["scalings_per_hour"] for run in runs),
            held_range=(min(held), max(held)),
            over_oracle_range=(min(cost), max(cost)),
        )

    return [row(cell, label, runs) for (cell, label), runs in seeds.items()]


def held_share(compliant: str, held_by_oracle: str) -> float:
    """Return the fraction of the oracle's compliant windows that comply; 1 if it has none.

    Parameters
    ----------
    compliant, held_by_oracle : str
        A "1" for each window that complies, a "0" for each that does not.
    """
    ours, oracles = (np.array(list(text)) == "1" for text in (compliant, held_by_oracle))
    return float(ours[oracles].mean()) if oracles.any() else 1.0


def _ratios(runs: Sequence[Record], oracles: Sequence[Record], name: str) -> list[float]:
    return [run[name] / oracle[name] for run, oracle in zip(runs, oracles, strict=True)]


def best_tuned(grid: Sequence[Row]) -> Row:
    """Return the cheapest row of a grid that reaches `GOAL_HELD`, else the one closest to it."""
    reaching = [row for row in grid if row.held >= GOAL_HELD]
    if reaching:
        return min(reaching, key=lambda row: row.over_oracle)
    return max(grid, key=lambda row: (row.held, -row.over_oracle))


def frontier(points: Iterable[Row]) -> list[Row]:
    """Return the Pareto-optimal rows, cheapest first: no other is as cheap and holds as much."""
    best: list[Row] = []
    for row in sorted(points, key=lambda row: (row.over_oracle, -row.held)):
        if not best or row.held > best[-1].held:
            best.append(row)
    return best


def beyond(points: Iterable[Row], ours: Sequence[Row]) -> list[Row]:
    """Return the points above our frontier, which is interpolated linearly between its own points.

    A point cheaper than all of ours counts as above if it holds more than our cheapest.
    """
    curve = frontier(ours)
    costs, shares = [row.over_oracle for row in curve], [row.held for row in curve]
    return [row for row in points if row.held > np.interp(row.over_oracle, costs, shares) + 1e-9]


def draw_frontiers(
    curves: Mapping[str, Sequence[Row]], fixed: Sequence[Row], title: str, path: Path
) -> None:
    """Draw the windows that each family misses over its cost, along its knob.

    Parameters
    ----------
    curves : mapping of str to sequence of Row
        Points by family; the family's default is ringed.
    fixed : sequence of Row
        Contenders without a knob, such as the oracles.
    title : str
    path : Path
    """
    everything = [*fixed, *(row for curve in curves.values() for row in curve)]
    least = min((1 - row.held for row in everything if row.held < 1), default=0.01) / 2
    figure = Figure(figsize=(8, 5), layout="constrained", dpi=110)
    axes = figure.subplots()
    axes.axhline(1 - GOAL_HELD, color="#999999", lw=0.8, ls=":")
    axes.axvline(GOAL_COST, color="#999999", lw=0.8, ls=":")

    def missed(points: Sequence[Row]) -> list[float]:
        return [max(1 - row.held, least) for row in points]

    def cost(points: Sequence[Row]) -> list[float]:
        return [row.over_oracle for row in points]

    for family, curve in curves.items():
        color, ours, best = COLORS[family], family == "sojourn", frontier(curve)
        stock = [row for row in curve if row.label == family]
        axes.plot(cost(curve), missed(curve), "o", color=color, ms=4)
        axes.plot(cost(stock), missed(stock), "o", color=color, ms=9, mfc="none")
        axes.plot(cost(best), missed(best), color=color, lw=2.5 if ours else 1.2, label=family)
    for row, marker in zip(fixed, "*Ps", strict=False):
        axes.plot(*cost([row]), *missed([row]), marker, color="black", ms=8, label=row.label)
    low, high = max(0.5, 0.9 * min(cost(everything))), 1.1 * max(cost(everything))
    axes.set(
        title=title,
        xlabel="replica-hours, relative to the start-aware oracle's",
        ylabel="one-minute windows missed, of those that the oracle holds",
        xscale="log",
        yscale="log",
        xlim=(low, high),
        ylim=(1.1, least / 1.2),
    )
    costs = [tick for tick in (0.5, 0.7, 1, GOAL_COST, 1.5, 2, 3, 5, 10, 20) if low < tick < high]
    axes.set_xticks(costs, [f"{tick:g}" for tick in costs])
    shares = [tick for tick in (1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005) if tick > 1.5 * least]
    axes.set_yticks([*shares, least], [*(f"{100 * tick:g}%" for tick in shares), "none"])
    axes.minorticks_off()
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path)
