"""The cases of `benchmarks.simulated.autoscaler`: the service, the traces, their days."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autoscaler.history.traces import load_trace
from autoscaler.simulator.arena import Load
from autoscaler.simulator.arrivals import WithinSecond, smoothed_rate
from autoscaler.simulator.experiments import load_lateness_curve, with_trace
from autoscaler.simulator.fleet import Failures
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.start_time import StartTime
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

FloatArray = NDArray[np.float64]

HOUR_S = 3600
DAY_S = 24 * HOUR_S
#: The most telling one first: a comparison may be stopped early.
START_TIMES_S = (60, 10, 300)
#: The start time at which traces are run as they are, besides superposed.
RAW_START_TIME_S = 60
#: Start times are lognormal; one start in twenty takes 1.6 times the median or longer.
START_SPREAD = 0.3
FAILED_STARTS = 0.02


@dataclass(frozen=True)
class Part:
    """A part of a file.

    Attributes
    ----------
    file : str
        Its name in the folder of the traces; empty for the synthetic load.
    begin_s, length_s : int
    name : str
        What the report calls it.
    """

    file: str
    begin_s: int
    length_s: int
    name: str

    def counts(self, folder: Path | None) -> FloatArray:
        """Read or generate the requests of each second, shape (length_s,)."""
        whole = (
            synthetic_day(self.begin_s + self.length_s, seed=7)
            if folder is None or not self.file
            else load_trace(folder / self.file).astype(float)
        )
        return whole[self.begin_s : self.begin_s + self.length_s]

    def cut(self, hours: int) -> "Part":
        """Return its first hours."""
        return replace(self, length_s=min(self.length_s, hours * HOUR_S))


@dataclass(frozen=True)
class Trace:
    """A load, the part that autoscalers are tuned on, and the parts that they are judged on.

    Attributes
    ----------
    name : str
    tune_on : Part
    judge_on : tuple of Part
    peak : int
        Replicas that the busiest second of the superposed tuning part needs, about.
    """

    name: str
    tune_on: Part
    judge_on: tuple[Part, ...]
    peak: int

    def quick(self) -> "Trace":
        """Return four hours of each part, with half the replicas."""
        parts = tuple(part.cut(4) for part in self.judge_on[:1])
        return Trace(self.name, self.tune_on.cut(4), parts, self.peak // 2)


_TWITTER = ("twitter_2021_08_days1-2.csv.gz", "twitter_2021_08_days3-9.csv.gz")
_NASA = ("nasa_1995_day5.csv.gz", "nasa_1995_days12-18.csv.gz")
TRACES = (
    Trace(
        "twitter",
        Part(_TWITTER[0], 0, DAY_S, "day 1"),
        (Part(_TWITTER[0], DAY_S, DAY_S, "day 2"), Part(_TWITTER[1], 5 * DAY_S, DAY_S, "day 8")),
        20,
    ),
    Trace(
        "nasa",
        Part(_NASA[0], 0, DAY_S, "day 5"),
        (Part(_NASA[1], 4 * DAY_S, DAY_S, "day 16"), Part(_NASA[1], 5 * DAY_S, DAY_S, "day 17")),
        20,
    ),
    *(
        Trace(
            f"azure {name}",
            Part(f"azure_llm_2023_{short}.csv.gz", 0, HOUR_S // 2, "first half hour"),
            (Part(f"azure_llm_2023_{short}.csv.gz", HOUR_S // 2, HOUR_S // 2, "second half hour"),),
            40,
        )
        for name, short in (("code", "code"), ("conversation", "conv"))
    ),
)
SYNTHETIC = Trace(
    "synthetic",
    Part("", 0, 2 * HOUR_S, "first two hours"),
    (Part("", 2 * HOUR_S, 2 * HOUR_S, "second two hours"),),
    20,
)


def service(googlenet: Profile) -> tuple[Profile, ServiceLevelObjective]:
    """Return GoogLeNet 20 times slower than on a P4, and its SLA: 99% within 500 ms."""
    energy_mj = googlenet.energy_mj
    slow = Profile(
        googlenet.model,
        f"{googlenet.device}, 20 times slower",
        20 * googlenet.latency_ms,
        None if energy_mj is None else 20 * energy_mj,
    )
    return slow, ServiceLevelObjective(500, 99)


@dataclass(frozen=True, eq=False)
class Case:
    """A tournament: a trace, superposed or as it is, at a start time and with a seed.

    Attributes
    ----------
    trace : Trace
    superposed : bool
    start_time_s : int
    seed : int
    """

    trace: Trace
    superposed: bool
    start_time_s: int
    seed: int

    @property
    def name(self) -> str:
        """Its name in tables."""
        kind = "superposed" if self.superposed else "raw"
        return f"{self.trace.name}, {kind}, {self.start_time_s} s to start"

    def loads(
        self, profile: Profile, objective: ServiceLevelObjective, folder: Path | None
    ) -> list[Load]:
        """Return the load to tune on, and those to judge on; one factor scales all of them."""
        empty = Scenario(
            profile,
            objective,
            np.ones(1),
            start_time=StartTime(self.start_time_s, START_SPREAD),
            failures=Failures(failed_start_share=FAILED_STARTS),
            within_second=WithinSecond.UNIFORM if self.superposed else WithinSecond.LINEAR,
            seed=self.seed,
        )
        tuned = self.trace.tune_on.counts(folder)
        busiest = float((smoothed_rate(tuned) if self.superposed else tuned).max())
        scale = self.trace.peak * load_lateness_curve(empty).sla_rate_per_s / busiest
        parts: Sequence[Part] = (self.trace.tune_on, *self.trace.judge_on)
        return [
            Load(
                f"{self.name}, seed {self.seed}, {part.name} ({part.begin_s}+{part.length_s} s)",
                with_trace(empty, part.counts(folder), scale, self.superposed),
            )
            for part in parts
        ]


def synthetic_day(seconds: int, seed: int) -> FloatArray:
    """Generate a day's load compressed into two hours: a swing, noise, bursts, clocked steps.

    Returns
    -------
    FloatArray, shape (seconds,)
        Requests of each second, about ten on average.
    """
    random = np.random.default_rng(seed)
    time = np.arange(seconds)
    rate = 10 - 6 * np.cos(2 * np.pi * time / (2 * HOUR_S))
    # Bursts of half a minute at double the rate, four an hour; steps of two minutes, two an hour.
    for begin in np.flatnonzero(random.random(seconds) < 4 / HOUR_S):
        rate[begin : begin + 30] *= 2
    rate *= np.where(time % (HOUR_S // 2) < 120, 1.5, 1.0)
    return random.poisson(rate).astype(float)
