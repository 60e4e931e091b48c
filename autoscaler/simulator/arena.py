"""Loads that compare autoscalers, with the oracle, a lower bound, and the outcomes.

All autoscalers get the same arrivals and start with the oracle's first replicas. Only the oracle
has the start time in advance, unless the fleet may have standbys. The oracle and the bound use its
median, have no failed starts and no standbys.
"""

import math
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autoscaler.observe.start_times import DEFAULT_S
from autoscaler.settings import AutoscalerSettings
from autoscaler.simulator.autoscalers.bound import bound_replica_seconds
from autoscaler.simulator.autoscalers.oracle import Clairvoyant, required_replicas_by_second
from autoscaler.simulator.autoscalers.registry import AUTOSCALERS, ORACLE, Choice, ScalingProblem
from autoscaler.simulator.experiments import load_lateness_curve, two_tier_starts
from autoscaler.simulator.fleet import Failures
from autoscaler.simulator.results import Run
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import simulate
from autoscaler.simulator.start_time import StartTime
from policy.errors import InvalidInputError

#: Maximum fleet, as a multiple of the oracle's largest.
MAX_TIMES_PEAK = 3
_HOUR = 60
_RESAMPLES = 2000

#: Called with the name of the current run and the share of the work that is done.
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Outcome:
    """The result of an autoscaler on a load.

    Attributes
    ----------
    name, label : str
        Those of the `Choice`.
    windows : str
        A letter for each one-minute window: ``1`` if it complied, ``0`` if not, ``-`` if it had no
        request.
    service_level : float
        Share of the requests in time.
    replica_seconds : float
        Replica-seconds paid for.
    energy_j : float or None
        Energy of the batches; None if the profile has none.
    scalings_per_hour : float
    """

    name: str
    label: str
    windows: str
    service_level: float
    replica_seconds: float
    energy_j: float | None
    scalings_per_hour: float

    @classmethod
    def of(cls, run: Run, choice: Choice) -> "Outcome":
        """Summarize a run."""
        judged, compliant = run.judged(), run.compliant()
        energy_j = float(run.energy_j.sum())
        return cls(
            choice.name,
            choice.label,
            "".join("-01"[int(j) + int(j and c)] for j, c in zip(judged, compliant, strict=True)),
            run.service_level,
            run.paid_replica_s,
            energy_j if math.isfinite(energy_j) else None,
            run.scalings_per_hour,
        )


class Load:
    """A scenario on which autoscalers are measured.

    Parameters
    ----------
    name : str
        Unique among the loads of a comparison.
    scenario : Scenario
        Its counts must be whole numbers, with a scale of 1. Its replicas and their upper bound are
        replaced by those of the oracle.
    """

    def __init__(self, name: str, scenario: Scenario) -> None:
        if scenario.scale != 1 or np.any(scenario.counts % 1):
            raise InvalidInputError(f"load {name}: the counts must be whole numbers, not scaled")
        self.name = name
        curve = load_lateness_curve(scenario)
        required = required_replicas_by_second(scenario.counts, curve.sla_rate_per_s)
        self._required = required
        first = Clairvoyant(required, scenario.start_time.median_s).initial_replicas
        limit = min(scenario.max_replicas, MAX_TIMES_PEAK * int(required.max()))
        first, limit = min(first, scenario.max_replicas), max(limit, first)
        self.scenario = replace(scenario, replicas=first, max_replicas=limit)
        self._sla_rate_per_s = curve.sla_rate_per_s

    @property
    def seconds(self) -> int:
        """Length in s."""
        return self.scenario.seconds

    @property
    def start_time_s(self) -> float:
        """The median start time in s."""
        return self.scenario.start_time.median_s

    def busiest_part(self, seconds: int) -> "Load":
        """Return the part of this length with the most requests."""
        if seconds >= self.seconds:
            return self
        sums = np.concatenate([[0.0], np.cumsum(self.scenario.counts)])
        first = int(np.argmax(sums[seconds:] - sums[:-seconds]))
        part = self.scenario.counts[first : first + seconds]
        return Load(f"{self.name}, busiest {seconds} s", replace(self.scenario, counts=part))

    def measure(self, choice: Choice) -> Outcome:
        """Simulate an autoscaler on this load."""
        scenario = self.scenario
        if choice.entry.name == ORACLE:
            scenario = replace(
                scenario,
                start_time=StartTime(self.start_time_s),
                failures=Failures(),
                standby_start_time=None,
            )
            return Outcome.of(
                simulate(scenario, Clairvoyant(self._required, self.start_time_s)), choice
            )
        return Outcome.of(simulate(scenario, choice.make(self._problem)), choice)

    @cached_property
    def bound_replica_seconds(self) -> float:
        """The bound of `autoscaler.simulator.autoscalers.bound`, in replica-seconds."""
        return bound_replica_seconds(
            self.scenario.counts,
            self.scenario.replica_profile.capacity_per_s,
            self.scenario.objective.late_share_allowed,
            self.start_time_s,
        )

    @property
    def _problem(self) -> ScalingProblem:
        scenario = self.scenario
        return ScalingProblem(
            scenario.replica_profile,
            scenario.objective,
            self._sla_rate_per_s,
            DEFAULT_S,
            scenario.counts,
            scenario.autoscaler_settings or AutoscalerSettings(),
            scenario.min_replicas,
            scenario.max_replicas,
            two_tier_starts(scenario),
        )


ORACLE_CHOICE = Choice(ORACLE, AUTOSCALERS[ORACLE])


@dataclass(frozen=True)
class Score:
    """An outcome relative to the oracle and to the bound.

    Attributes
    ----------
    outcome : Outcome
    held : float
        Share of the windows that comply, among the windows that the oracle holds.
    interval : tuple of (float, float)
        95% interval of `held`, by resampling the hours of the load.
    over_oracle, over_bound : float
        Replica-seconds relative to the oracle by seconds, and to the bound.
    energy_over_oracle : float or None
    """

    outcome: Outcome
    held: float
    interval: tuple[float, float]
    over_oracle: float
    over_bound: float
    energy_over_oracle: float | None


def score(outcome: Outcome, oracle: Outcome, bound_s: float) -> Score:
    """Compare an outcome with the oracle's on the same load, and with its bound."""
    held = _held(outcome.windows, oracle.windows)
    energy = None
    if outcome.energy_j is not None and oracle.energy_j:
        energy = outcome.energy_j / oracle.energy_j
    return Score(
        outcome,
        float(held.mean()) if held.size else 1.0,
        _interval(held),
        outcome.replica_seconds / oracle.replica_seconds,
        outcome.replica_seconds / bound_s,
        energy,
    )


def _held(windows: str, oracles: str) -> NDArray[np.bool_]:
    """Return whether each window that the oracle holds was held."""
    held = [ours == "1" for ours, theirs in zip(windows, oracles, strict=True) if theirs == "1"]
    return np.array(held, dtype=np.bool_)


def _interval(held: NDArray[np.bool_]) -> tuple[float, float]:
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


class Arena:
    """Measures autoscalers on loads, in parallel processes, each pair once.

    Parameters
    ----------
    loads : sequence of Load
        All loads that will be measured.
    workers : int
        Number of processes; with 1, everything runs in this one.
    store : mutable mapping, optional
        Outcomes by load and choice that are known already; new ones are added.
    """

    def __init__(
        self,
        loads: Sequence[Load],
        workers: int = 1,
        store: MutableMapping[tuple[str, str], Outcome] | None = None,
    ) -> None:
        self._loads = {load.name: load for load in loads}
        if len(self._loads) < len(loads):
            raise InvalidInputError("loads: their names must differ")
        self._workers = workers
        self._store = {} if store is None else store
        self._pool: Executor | None = None

    def __enter__(self) -> "Arena":
        if self._workers > 1:
            self._pool = ProcessPoolExecutor(
                self._workers, initializer=_keep, initargs=(self._loads,)
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def measure(
        self, pairs: Iterable[tuple[Load, Choice]], progress: Progress | None = None
    ) -> None:
        """Measure the pairs without an outcome."""
        missing = {
            (load.name, choice.name): choice
            for load, choice in pairs
            if (load.name, choice.name) not in self._store
        }
        for number, (key, outcome) in enumerate(self._outcomes(missing)):
            self._store[key] = outcome
            if progress is not None:
                progress(f"{outcome.label} on {key[0]}", (number + 1) / len(missing))

    def score(self, load: Load, choice: Choice) -> Score:
        """Return the score of a measured pair."""
        self.measure([(load, ORACLE_CHOICE), (load, choice)])
        oracle = self._store[load.name, ORACLE]
        return score(self._store[load.name, choice.name], oracle, load.bound_replica_seconds)

    def _outcomes(
        self, missing: dict[tuple[str, str], Choice]
    ) -> Iterable[tuple[tuple[str, str], Outcome]]:
        if self._pool is None:
            for (load, name), choice in missing.items():
                yield (load, name), self._loads[load].measure(choice)
            return
        futures = {
            self._pool.submit(_measure, load, choice): (load, name)
            for (load, name), choice in missing.items()
        }
        for future in as_completed(futures):
            yield futures[future], future.result()


#: In a worker process: its loads. Each process receives them once, because their tables are
#: expensive.
_kept: dict[str, Load] = {}


def _keep(loads: dict[str, Load]) -> None:
    _kept.update(loads)


def _measure(load: str, choice: Choice) -> Outcome:
    return _kept[load].measure(choice)
