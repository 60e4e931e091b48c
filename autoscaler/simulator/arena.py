"""Tune every family of autoscalers on one load, and judge it on another.

All autoscalers get the same arrivals and start with the oracle's first replicas. Only the oracle
has the start time in advance, unless the fleet may have standbys. The oracle and the bound use its
median, have no failed starts and no standbys.

Each family is tuned over its own grid (`autoscaler.simulator.autoscalers.registry`). The chosen
setting is the cheapest that holds the goal's share of windows, or else the one that holds most. It,
its neighbors on the frontier of cost and windows, and the published setting then run on the load
that was not used for tuning.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoscaler.simulator.autoscalers.bound import bound_replica_seconds
from autoscaler.simulator.autoscalers.oracle import Clairvoyant, required_replicas_by_second
from autoscaler.simulator.autoscalers.registry import (
    AUTOSCALERS,
    FAMILIES,
    Choice,
)
from autoscaler.simulator.results import Run
from autoscaler.simulator.scenario import Failures, Scenario
from autoscaler.simulator.simulation import simulate
from autoscaler.simulator.start_time import StartTime

#: Share of the windows that a setting must hold.
GOAL = 0.99
#: Maximum fleet, as a multiple of the oracle's largest.
MAX_TIMES_PEAK = 3
#: Number of judged settings of a family besides the published one.
_FINALISTS = 3
#: Factor of cost between two settings that cost more than the chosen one.
_COST_STEP = 1.08
#: Families of rules that predict nothing.
SIMPLE = ("peak", "mdc", "hpa")
_HOUR = 60
_RESAMPLES = 2000

BoolArray = NDArray[np.bool_]


class Load:
    """A scenario on which autoscalers are measured.

    Its counts must be whole numbers. Its replicas and their upper bound are
    replaced by those of the oracle.
    """

    def __init__(self, name: str, scenario: Scenario) -> None:
        self.name = name
        sla_rate_per_s = scenario.load_lateness_curve.sla_rate_per_s
        self._required = required_replicas_by_second(scenario.counts, sla_rate_per_s)
        start_time_s = scenario.start_time.median_s
        first = Clairvoyant(self._required, start_time_s).initial_replicas
        limit = min(scenario.max_replicas, MAX_TIMES_PEAK * int(self._required.max()))
        first = min(first, scenario.max_replicas)
        self.scenario = replace(scenario, replicas=first, max_replicas=max(limit, first))

    def oracle(self) -> Run:
        """Run the oracle, whose starts take the median and never fail."""
        start_time_s = self.scenario.start_time.median_s
        scenario = replace(
            self.scenario,
            start_time=StartTime(start_time_s),
            failures=Failures(),
            standby_start_time=None,
        )
        return simulate(scenario, Clairvoyant(self._required, start_time_s))

    def measure(self, choice: Choice) -> Run:
        return simulate(self.scenario, choice.make(self.scenario))

    def bound_replica_seconds(self) -> float:
        """Return the bound of `autoscaler.simulator.autoscalers.bound`, in replica-seconds."""
        return bound_replica_seconds(
            self.scenario.counts,
            self.scenario.replica_profile.capacity_per_s,
            self.scenario.objective.late_share_allowed,
            self.scenario.start_time.median_s,
        )


@dataclass(frozen=True)
class Score:
    """The result of a choice on a load, relative to the oracle by seconds and to the bound.

    `held` is the share of the one-minute windows with requests that comply, among those that the
    oracle holds, with its 95% interval. No energy in the profile: None.
    """

    choice: Choice
    held: float
    interval: tuple[float, float]
    over_oracle: float
    over_bound: float
    energy_over_oracle: float | None
    scalings_per_hour: float


def score(choice: Choice, run: Run, oracle: Run, bound_s: float) -> Score:
    """Compare a run with the oracle's on the same load, and with its bound."""
    held = run.compliant()[oracle.judged() & oracle.compliant()]
    energy = float(run.energy_j.sum() / oracle.energy_j.sum())
    return Score(
        choice,
        float(held.mean()) if held.size else 1.0,
        held_interval(held),
        run.paid_replica_s / oracle.paid_replica_s,
        run.paid_replica_s / bound_s,
        energy if math.isfinite(energy) else None,
        run.scalings_per_hour,
    )


def held_interval(held: BoolArray) -> tuple[float, float]:
    """Return the 95% interval of the share held, by resampling blocks of an hour.

    Windows that are missed come in groups, so single windows must not be resampled. A load of less
    than ten hours is resampled in ten blocks.
    """
    if not held.size:
        return 1.0, 1.0
    blocks = np.array_split(held, max(min(10, held.size), held.size // _HOUR))
    sums, sizes = (np.array([measure(block) for block in blocks]) for measure in (np.sum, np.size))
    drawn = np.random.default_rng(0).integers(len(blocks), size=(_RESAMPLES, len(blocks)))
    low, high = np.quantile(sums[drawn].sum(1) / sizes[drawn].sum(1), [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True)
class Tuned:
    """A family after its tuning: its chosen, its published and all judged settings."""

    family: str
    chosen: Score
    published: Score
    judged: tuple[Score, ...]


def tune_and_judge(
    tune_on: Load, judge_on: Load, families: Sequence[str] = FAMILIES, workers: int = 1
) -> tuple[Tuned, ...]:
    """Tune families of autoscalers on one load and judge them on another, in parallel processes."""
    grids = {family: AUTOSCALERS[family].grid() for family in families}
    tuning = _scores(tune_on, [choice for grid in grids.values() for choice in grid], workers)
    chosen, finalists = {}, {}
    for family, grid in grids.items():
        scores = [tuning[choice] for choice in grid]
        chosen[family] = cheapest_at_goal(scores).choice
        near = [one.choice for one in near_goal(scores, _FINALISTS)]
        finalists[family] = list(dict.fromkeys([*near, grid[0]]))
    judged = _scores(judge_on, [one for each in finalists.values() for one in each], workers)
    return tuple(
        Tuned(
            family,
            judged[chosen[family]],
            judged[grids[family][0]],
            tuple(judged[choice] for choice in finalists[family]),
        )
        for family in grids
    )


def best_in_hindsight(load: Load, workers: int = 1) -> tuple[Score, ...]:
    """Return the score of Sojourn as published, its cheapest and the cheapest simple one.

    All settings are measured on the load itself; the cheapest ones hold no less than the published
    one. No simple one may.
    """
    own = AUTOSCALERS["sojourn"].grid()
    simple = [choice for family in SIMPLE for choice in AUTOSCALERS[family].grid()]
    found = _scores(load, [*own, *simple], workers)
    published = found[own[0]]
    best = [published]
    for choices in (own, simple):
        enough = [found[choice] for choice in choices if found[choice].held >= published.held]
        best += sorted(enough, key=lambda s: s.over_oracle)[:1]
    return tuple(best)


def _scores(load: Load, choices: Sequence[Choice], workers: int) -> Mapping[Choice, Score]:
    bound_s, oracle = load.bound_replica_seconds(), load.oracle()
    with ProcessPoolExecutor(workers, initializer=_keep, initargs=(load,)) as pool:
        runs = pool.map(_measure, choices)
        return {
            choice: score(choice, run, oracle, bound_s)
            for choice, run in zip(choices, runs, strict=True)
        }


#: In a worker process: its load, whose tables are expensive.
_kept: list[Load] = []


def _keep(load: Load) -> None:
    _kept[:] = [load]


def _measure(choice: Choice) -> Run:
    return _kept[0].measure(choice)


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
