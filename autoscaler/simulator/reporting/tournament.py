"""The report of a tournament: autoscalers tuned on one load and judged on others."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from autoscaler.simulator.arena import Score
from autoscaler.simulator.reporting.comparison import percent
from autoscaler.simulator.reporting.report import Setting, environment, write_page
from autoscaler.simulator.reporting.svg import BAD, FAINT, SERIES, to_svg
from autoscaler.simulator.tuning import GOAL, Tournament, Tuned, frontier

#: Families that are drawn without a color of their own share the last one.
_MARKERS = "osD^vP*X<>"
_TICKS = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 1.75, 2, 2.5, 3, 4, 5, 7, 10, 15, 20, 30)
_SHARES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)


@dataclass(frozen=True)
class Line:
    """A family's row of a table, in words.

    Attributes
    ----------
    family, label : str
    held, over_oracle, over_bound, energy, scalings : str
    """

    family: str
    label: str
    held: str
    over_oracle: str
    over_bound: str
    energy: str
    scalings: str


def line(family: str, score: Score) -> Line:
    """Put a score into words."""
    low, high = score.interval
    energy = score.energy_over_oracle
    return Line(
        family,
        score.outcome.label,
        f"{percent(score.held)} [{percent(low)}, {percent(high)}]",
        f"{score.over_oracle:.2f}",
        f"{score.over_bound:.2f}",
        "-" if energy is None else f"{energy:.2f}",
        f"{score.outcome.scalings_per_hour:.0f}",
    )


def verdict(tournament: Tournament) -> list[str]:
    """Return the outcome in sentences: the cheapest at the goal, and what lies beyond Sojourn."""
    sentences = []
    for number, name in enumerate(tournament.judge_on):
        chosen = [tuned.chosen_on(number) for tuned in tournament.families]
        reaching = sorted((s for s in chosen if s.held >= GOAL), key=lambda s: s.over_oracle)
        if not reaching:
            sentences.append(f"On {name}, none of the tuned autoscalers held {percent(GOAL)}.")
        else:
            best = reaching[0]
            sentences.append(
                f"On {name}, {best.outcome.label} held {percent(best.held)} of the minutes at "
                f"{best.over_oracle:.2f} times the oracle's replica-hours; of the tuned "
                f"autoscalers that held {percent(GOAL)}, it cost least."
            )
        above = tournament.beyond(number)
        if above:
            named = ", ".join(
                f"{s.outcome.label} ({percent(s.held)} at {s.over_oracle:.2f})" for s in above
            )
            sentences.append(f"Beyond Sojourn's curve there: {named}.")
    return sentences


def draw_frontiers(
    axes: Axes,
    families: Sequence[Tuned],
    judge: int,
    bound: float,
    colors: Sequence[str],
    goal: str = BAD,
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
    colors : sequence of str
        Colors of the families; the last one serves all that remain.
    goal : str
        Color of the lines that mark the goal and the bound.
    """
    scores = [score for tuned in families for score in tuned.judged[judge]]
    least = min((1 - s.held for s in scores if s.held < 1), default=0.01) / 2
    for number, tuned in enumerate(families):
        color, marker = colors[min(number, len(colors) - 1)], _MARKERS[number % len(_MARKERS)]
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
    axes.axhline(1 - GOAL, color=goal, lw=0.9, ls=":")
    axes.axvline(bound, color=goal, lw=1.1, label="bound")
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


def render(tournament: Tournament, setting: Setting, sla: str) -> str:
    """Render the page; it is the same for the same input."""
    days = [_day(tournament, number) for number in range(len(tournament.judge_on))]
    tuning = [
        {
            "label": tuned.tuning.outcome.label,
            "settings": tuned.settings,
            "held": percent(tuned.tuning.held),
            "over_oracle": f"{tuned.tuning.over_oracle:.2f}",
        }
        for tuned in tournament.families
    ]
    return environment().get_template("tournament.html").render(
        setting=setting,
        sla=sla,
        keeps_sla=True,
        verdict=verdict(tournament),
        days=days,
        tuning=tuning,
        tune_on=tournament.tune_on,
        goal=GOAL,
    )  # fmt: skip


def save_tournament(path: str | Path, tournament: Tournament, setting: Setting, sla: str) -> None:
    """Render the page and write it to a file.

    Raises
    ------
    InvalidInputError
        The file cannot be written.
    """
    write_page(path, render(tournament, setting, sla))


def _day(tournament: Tournament, number: int) -> dict[str, Any]:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        bound = tournament.bounds_over_oracle[number]
        draw_frontiers(axes, tournament.families, number, bound, (*SERIES, FAINT))

    chosen = [(tuned.family, tuned.chosen_on(number)) for tuned in tournament.families]
    chosen.sort(key=lambda pair: pair[1].over_oracle)
    return {
        "name": tournament.judge_on[number],
        "rows": [line(family, score) for family, score in chosen],
        "picture": to_svg(draw, 4.2, f"frontier{number}"),
    }
