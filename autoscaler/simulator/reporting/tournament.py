"""Descriptions of a tournament: autoscalers tuned on one load and judged on others."""

from dataclasses import dataclass

from autoscaler.simulator.arena import Score
from autoscaler.simulator.reporting.comparison import percent
from autoscaler.simulator.tuning import GOAL, Tournament


@dataclass(frozen=True)
class Line:
    """A family's row of a table, in words."""

    family: str
    label: str
    held: str
    over_oracle: str
    over_bound: str
    energy: str
    scalings: str


def line(family: str, score: Score) -> Line:
    """Describe a score."""
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
    """Return the outcome in sentences: the cheapest at the goal, and who beats Sojourn."""
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
