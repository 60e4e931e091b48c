"""The results of `benchmarks.simulated.autoscaler` as Markdown tables and plots."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from autoscaler.simulator.arena import Score
from autoscaler.simulator.reporting.comparison import percent
from autoscaler.simulator.tuning import GOAL, Tournament, Tuned, frontier
from benchmarks.simulated.arena.cases import Case

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
COLORS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#b22222", "#6b4f3a"),
    "#777777",
)
_MARKERS = "osD^vP*X<>"
_TICKS = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 1.75, 2, 2.5, 3, 4, 5, 7, 10, 15, 20, 30)
_SHARES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)

Result = tuple[Case, Tournament]


def tables(
    results: Sequence[Result],
    plots: Mapping[str, Path] | None = None,
    missing: Sequence[Case] = (),
) -> str:
    """Return a table for each trace, kind and start time; seeds are summed up as medians.

    Parameters
    ----------
    results : sequence of (Case, Tournament)
    plots : mapping of str to Path, optional
        Plots by the name of their case, in the folder `images` beside the page.
    missing : sequence of Case
        Those that have not been run, which are named.
    """
    parts = []
    if missing:
        named = dict.fromkeys(f"{case.name} (seed {case.seed})" for case in missing)
        parts.append(f"Not run yet: {'; '.join(named)}.\n")
    for name, same in _by_case(results).items():
        first = same[0]
        for judge, load in enumerate(first.judge_on):
            day = load.rsplit(", ", 1)[1].split(" (")[0]
            bound = median(t.bounds_over_oracle[judge] for t in same)
            parts.append(
                f"**{name[0].upper()}{name[1:]}, {day}** (bound: {bound:.2f}; {_seeds(same)})\n"
            )
            parts.append(
                "| tuned on another day | minutes held | × oracle | × bound | energy | scalings/h |"
            )
            parts.append("|---|---|---|---|---|---|")
            families = [tuned.family for tuned in first.families]
            rows = [
                [t.families[number].chosen_on(judge) for t in same]
                for number in range(len(families))
            ]
            rows.sort(key=lambda row: median(s.over_oracle for s in row))
            parts += map(_row, rows)
            beyond = [s for t in same for s in t.beyond(judge)]
            parts.append("")
            parts.append(_published(same, judge))
            parts.append(_beyond(beyond))
        if plots and name in plots:
            parts.append(f"![{name}](images/{plots[name].name})\n")
    return "\n".join(parts)


def _by_case(results: Sequence[Result]) -> dict[str, list[Tournament]]:
    by_case: dict[str, list[Tournament]] = {}
    for case, tournament in results:
        by_case.setdefault(case.name, []).append(tournament)
    return by_case


def _seeds(same: Sequence[Tournament]) -> str:
    return "one seed" if len(same) == 1 else f"{len(same)} seeds"


def _published(same: Sequence[Tournament], judge: int) -> str:
    """Return what the settings as published reach, the cheapest first."""
    rows = [
        [t.families[number].published_on(judge) for t in same]
        for number in range(len(same[0].families))
    ]
    points = sorted(
        (median(s.over_oracle for s in row), median(s.held for s in row), row[0].outcome.label)
        for row in rows
    )
    named = ", ".join(f"{label} {percent(held)} at {cost:.2f}" for cost, held, label in points)
    return f"As published, not tuned: {named}.\n"


def _row(scores: Sequence[Score]) -> str:
    held = median(s.held for s in scores)
    low = min(s.interval[0] for s in scores)
    high = max(s.interval[1] for s in scores)
    cost = median(s.over_oracle for s in scores)
    mark = "**" if held >= GOAL else ""
    energies = [s.energy_over_oracle for s in scores if s.energy_over_oracle is not None]
    return (
        f"| {scores[0].outcome.label} | {mark}{percent(held)}{mark} "
        f"[{percent(low)}, {percent(high)}] | {cost:.2f} | "
        f"{median(s.over_bound for s in scores):.2f} | "
        f"{median(energies) if energies else float('nan'):.2f} | "
        f"{median(s.outcome.scalings_per_hour for s in scores):.0f} |"
    )


def _beyond(beyond: Sequence[Score]) -> str:
    if not beyond:
        return "Nothing lies beyond Sojourn's curve.\n"
    named = ", ".join(
        f"{s.outcome.label} ({percent(s.held)} at {s.over_oracle:.2f})" for s in beyond
    )
    return f"Beyond Sojourn's curve: {named}.\n"


def insert(page: Path, text: str) -> None:
    """Replace what is between the two marks of a page.

    Raises
    ------
    ValueError
        The page does not have the marks.
    """
    content = page.read_text()
    before, _, rest = content.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"{page}: has no {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}")


def draw(case: Case, tournament: Tournament, folder: Path) -> Path:
    """Draw the frontiers on the first load judged, and return the file."""
    figure = Figure(figsize=(9, 5), layout="constrained", dpi=110)
    axes = figure.subplots()
    _draw_frontiers(axes, tournament.families, 0, tournament.bounds_over_oracle[0])
    axes.set_title(tournament.judge_on[0].split(" (")[0])
    kind = "" if case.superposed else "_raw"
    name = f"autoscaler_frontier_{case.trace.name.replace(' ', '_')}{kind}.png"
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / name)
    return folder / name


def _draw_frontiers(
    axes: Axes,
    families: Sequence[Tuned],
    judge: int,
    bound: float,
) -> None:
    """Draw the minutes that each family missed over its cost, on a load that it was not tuned on.

    Parameters
    ----------
    axes : Axes
    families : sequence of Tuned
    judge : int
        Place of the load.
    bound : float
        The bound, relative to the oracle's replica-seconds.
    """
    scores = [score for tuned in families for score in tuned.judged[judge]]
    least = min((1 - s.held for s in scores if s.held < 1), default=0.01) / 2
    for number, tuned in enumerate(families):
        color, marker = COLORS[min(number, len(COLORS) - 1)], _MARKERS[number % len(_MARKERS)]
        curve = frontier(tuned.judged[judge])
        cost, missed = [s.over_oracle for s in curve], _missed(curve, least)
        axes.plot(
            cost, missed, color=color, lw=2.4 if tuned.family == "sojourn" else 1.1, marker=marker,
            ms=4, label=tuned.family,
        )  # fmt: skip
        chosen = tuned.chosen_on(judge)
        axes.plot(
            [chosen.over_oracle], _missed([chosen], least), marker, color=color, ms=9, mfc="none"
        )
    axes.axhline(1 - GOAL, color=COLORS[-1], lw=0.9, ls=":")
    axes.axvline(bound, color=COLORS[-1], lw=1.1, label="bound")
    costs = [s.over_oracle for s in scores]
    low, high = min(0.95 * bound, *costs), 1.1 * max(costs)
    axes.set(xscale="log", yscale="log", xlim=(low / 1.03, high), ylim=(1.1, least / 1.3))
    ticks = [tick for tick in _TICKS if low < tick < high]
    axes.xaxis.set_major_locator(FixedLocator(ticks[:: max(1, len(ticks) // 8)]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    shares = [share for share in _SHARES if share > 1.5 * least]
    axes.set_yticks([*shares, least], [*(f"{100 * share:g}%" for share in shares), "none"])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.set_xlabel("replica-hours, times the oracle's")
    axes.set_ylabel("minutes missed")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)


def _missed(scores: Sequence[Score], least: float) -> list[float]:
    return [max(1 - score.held, least) for score in scores]
