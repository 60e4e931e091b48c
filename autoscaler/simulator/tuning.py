"""Tune every family of autoscalers on one load, and judge it on others.

Each family, Sojourn included, is tuned over its own grid
(`autoscaler.simulator.autoscalers.registry`). On a long load, a large grid is screened on the
busiest part first, and only settings near the goal run on the whole. The chosen setting is the
cheapest that holds the goal's share of windows, or else the one that holds most. It, its neighbors
on the frontier of cost and windows, and the published setting then run on loads that were not used
for tuning.
"""

from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.simulator.arena import ORACLE_CHOICE, Arena, Load, Outcome, Progress, Score
from autoscaler.simulator.autoscalers.registry import AUTOSCALERS, FAMILIES, Choice

#: Share of the windows that a setting must hold.
GOAL = 0.99
#: Number of judged settings of a family: the chosen one, and others on its frontier.
FINALISTS = 3
#: Larger grids are screened on a part of any load longer than `SCREENED_ABOVE_S`.
_SCREENED_ABOVE = 8
SCREENED_ABOVE_S = 6 * 3600
#: Share of the load in this part.
_SCREENED_SHARE = 0.2
#: Settings that survive the screening.
_SURVIVORS = 5
#: Factor of cost between two settings that cost more than the chosen one.
_COST_STEP = 1.08


@dataclass(frozen=True)
class Tuned:
    """A family after its tuning.

    Attributes
    ----------
    family : str
    chosen : Choice
        The cheapest setting that held the goal on the tuning load, or else the one that held most.
    finalists : tuple of Choice
        The chosen one and its neighbors on the frontier, the cheapest first; then the published
        one, if it is not among them.
    tuning : Score
        Of the chosen one, on the tuning load.
    judged : tuple of tuple of Score
        For each load judged, the scores of the finalists.
    settings : int
        Settings tried.
    """

    family: str
    chosen: Choice
    finalists: tuple[Choice, ...]
    tuning: Score
    judged: tuple[tuple[Score, ...], ...]
    settings: int

    def chosen_on(self, judge: int) -> Score:
        """Return the score of the chosen setting on a judged load."""
        return self.judged[judge][self.finalists.index(self.chosen)]

    def published_on(self, judge: int) -> Score:
        """Return the score of the published setting on a judged load."""
        return next(s for s in self.judged[judge] if s.outcome.name == self.family)


@dataclass(frozen=True)
class Tournament:
    """All families tuned on one load and judged on others.

    Attributes
    ----------
    tune_on : str
        Name of the tuning load.
    judge_on : tuple of str
        Names of the loads judged.
    families : tuple of Tuned
    bounds_over_oracle : tuple of float
        The bound over the oracle's replica-seconds, for each load judged.
    """

    tune_on: str
    judge_on: tuple[str, ...]
    families: tuple[Tuned, ...]
    bounds_over_oracle: tuple[float, ...]

    def beyond(self, judge: int, family: str = "sojourn") -> list[Score]:
        """Return the other families' judged scores beyond this family's frontier."""
        ours = [t.judged[judge] for t in self.families if t.family == family]
        others = [s for t in self.families if t.family != family for s in t.judged[judge]]
        return beyond(others, ours[0]) if ours else []


class Tuner:
    """Runs a tournament.

    Parameters
    ----------
    tune_on : Load
    judge_on : sequence of Load
    families : sequence of str
    workers : int
        Number of processes.
    store : mutable mapping, optional
        Outcomes that are known already, as for `Arena`.
    """

    def __init__(
        self,
        tune_on: Load,
        judge_on: Sequence[Load],
        families: Sequence[str] = FAMILIES,
        workers: int = 1,
        store: MutableMapping[tuple[str, str], Outcome] | None = None,
    ) -> None:
        self._tune_on, self._judge_on, self._families = tune_on, judge_on, families
        self._part = tune_on
        if tune_on.seconds > SCREENED_ABOVE_S:
            self._part = tune_on.busiest_part(round(_SCREENED_SHARE * tune_on.seconds))
        loads = {load.name: load for load in (tune_on, self._part, *judge_on)}
        self._arena = Arena(tuple(loads.values()), workers, store)

    def run(self, progress: Progress | None = None) -> Tournament:
        """Tune and judge all families; report the share of the work that is done."""
        with self._arena as arena:
            grids = {family: AUTOSCALERS[family].grid() for family in self._families}
            part = self._part
            screened = {
                family: choices
                for family, choices in grids.items()
                if part is not self._tune_on and len(choices) > _SCREENED_ABOVE
            }
            self._measure(
                [(part, c) for choices in screened.values() for c in choices],
                _from_to(progress, 0.0, 0.3),
            )
            survivors = grids | {
                family: self._near_goal(part, choices, _SURVIVORS)
                if family in screened
                else choices
                for family, choices in grids.items()
            }
            self._measure(
                [(self._tune_on, c) for choices in survivors.values() for c in choices],
                _from_to(progress, 0.3, 0.65),
            )
            tuned = {
                family: self._near_goal(self._tune_on, choices, FINALISTS)
                for family, choices in survivors.items()
            }
            finalists = {
                family: tuple(dict.fromkeys([*choices, grids[family][0]]))
                for family, choices in tuned.items()
            }
            self._measure(
                [(load, c) for cs in finalists.values() for load in self._judge_on for c in cs],
                _from_to(progress, 0.65, 1.0),
            )
            return Tournament(
                self._tune_on.name,
                tuple(load.name for load in self._judge_on),
                tuple(
                    self._tuned(family, len(grids[family]), tuned[family], finalists[family])
                    for family in grids
                ),
                tuple(1 / arena.score(load, ORACLE_CHOICE).over_bound for load in self._judge_on),
            )

    def _measure(self, pairs: list[tuple[Load, Choice]], progress: Progress | None) -> None:
        oracles = [(load, ORACLE_CHOICE) for load in dict.fromkeys(load for load, _ in pairs)]
        self._arena.measure([*oracles, *pairs], progress)

    def _near_goal(self, load: Load, choices: Sequence[Choice], count: int) -> tuple[Choice, ...]:
        scores = {choice.name: self._arena.score(load, choice) for choice in choices}
        kept = {s.outcome.name for s in near_goal(list(scores.values()), count)}
        by_cost = sorted(choices, key=lambda c: scores[c.name].over_oracle)
        return tuple(choice for choice in by_cost if choice.name in kept)

    def _tuned(
        self, family: str, settings: int, tuned: Sequence[Choice], finalists: Sequence[Choice]
    ) -> Tuned:
        best = cheapest_at_goal([self._arena.score(self._tune_on, c) for c in tuned])
        chosen = next(c for c in tuned if c.name == best.outcome.name)
        judged = tuple(
            tuple(self._arena.score(load, c) for c in finalists) for load in self._judge_on
        )
        return Tuned(family, chosen, tuple(finalists), best, judged, settings)


def cheapest_at_goal(scores: Sequence[Score]) -> Score:
    """Return the cheapest score that holds `GOAL`, else the one that holds most."""
    reaching = [s for s in scores if s.held >= GOAL]
    if reaching:
        return min(reaching, key=lambda s: s.over_oracle)
    return max(scores, key=lambda s: (s.held, -s.over_oracle))


def frontier(scores: Iterable[Score]) -> list[Score]:
    """Return the scores on the Pareto frontier of cost and windows held, cheapest first."""
    best: list[Score] = []
    for each in sorted(scores, key=lambda s: (s.over_oracle, -s.held)):
        if not best or each.held > best[-1].held:
            best.append(each)
    return best


def near_goal(scores: Sequence[Score], count: int) -> list[Score]:
    """Return up to `count` scores around the one that `cheapest_at_goal` chooses.

    Half of the others are its cheaper neighbors on the frontier. The rest cost more, each by
    `_COST_STEP` at least, and hold no less: on another load they may hold more.
    """
    best = cheapest_at_goal(scores)
    costlier = [best]
    for each in sorted(scores, key=lambda s: s.over_oracle):
        last = costlier[-1]
        if each.over_oracle >= _COST_STEP * last.over_oracle and each.held >= last.held:
            costlier.append(each)
    cheaper = [s for s in frontier(scores) if s.over_oracle < best.over_oracle]
    below = min(len(cheaper), max((count - 1) // 2, count - len(costlier)))
    return [*cheaper[len(cheaper) - below :], *costlier[: count - below]]


def beyond(scores: Iterable[Score], ours: Sequence[Score]) -> list[Score]:
    """Return the scores beyond our frontier, which is interpolated linearly between its points.

    A score cheaper than all of ours is beyond it if it holds no less than our cheapest.
    """
    curve = frontier(ours)
    costs, shares = [s.over_oracle for s in curve], [s.held for s in curve]

    def is_beyond(s: Score) -> bool:
        if s.over_oracle < costs[0] - 1e-9:
            return s.held >= shares[0]
        return bool(s.held > np.interp(s.over_oracle, costs, shares) + 1e-9)

    return [s for s in scores if is_beyond(s)]


def _from_to(progress: Progress | None, low: float, high: float) -> Progress | None:
    if progress is None:
        return None
    return lambda label, done: progress(label, low + (high - low) * done)
