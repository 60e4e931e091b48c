"""The cases of `benchmarks.simulated.autoscaler`: the service, the traces, their days."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autoscaler.history.traces import load_trace
from autoscaler.simulator.arena import Load
from autoscaler.simulator.arrivals import WithinSecond, smoothed_rate
from autoscaler.simulator.experiments import with_trace
from autoscaler.simulator.scenario import Failures, Scenario
from autoscaler.simulator.start_time import StartTime
from benchmarks.inputs import GOOGLENET_P4
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

HOUR_S = 3600
DAY_S = 24 * HOUR_S
#: Start times are lognormal; one start in twenty takes 1.6 times the median or longer.
START_SPREAD = 0.3
FAILED_STARTS = 0.02
#: GoogLeNet 20 times slower than on a P4.
assert GOOGLENET_P4.energy_mj is not None
PROFILE = Profile(
    GOOGLENET_P4.model,
    f"{GOOGLENET_P4.device}, 20 times slower",
    20 * GOOGLENET_P4.latency_ms,
    20 * GOOGLENET_P4.energy_mj,
)
SLA = ServiceLevelObjective(500, 99)


@dataclass(frozen=True)
class Part:
    """A part of a file."""

    file: str
    begin_s: int
    length_s: int
    name: str

    def counts(self, folder: Path, hours: int) -> NDArray[np.float64]:
        """Return the requests of each second of its first hours."""
        length_s = min(self.length_s, hours * HOUR_S)
        whole = load_trace(folder / self.file).astype(float)
        return whole[self.begin_s : self.begin_s + length_s]


@dataclass(frozen=True)
class Trace:
    """A load, its parts to tune and to judge on, and the most replicas that the first needs."""

    name: str
    tune_on: Part
    judge_on: Part
    peak: int

    def is_in(self, folder: Path) -> bool:
        return all((folder / part.file).exists() for part in (self.tune_on, self.judge_on))

    def loads(self, start_time_s: int, folder: Path, hours: int) -> tuple[Load, Load]:
        """Return the loads to tune and to judge on; one factor scales both."""
        empty = Scenario(
            PROFILE,
            SLA,
            np.ones(1),
            start_time=StartTime(start_time_s, START_SPREAD),
            failures=Failures(failed_start_share=FAILED_STARTS),
            within_second=WithinSecond.UNIFORM,
        )
        busiest = float(smoothed_rate(self.tune_on.counts(folder, hours)).max())
        scale = self.peak * empty.load_lateness_curve.sla_rate_per_s / busiest
        tune_on, judge_on = (
            Load(
                f"{self.name}, {start_time_s} s to start, {part.name}",
                with_trace(empty, part.counts(folder, hours), scale, superpose=True),
            )
            for part in (self.tune_on, self.judge_on)
        )
        return tune_on, judge_on


_TWITTER = "twitter_2021_08_days1-2.csv.gz"
_AZURE = {"code": "azure_llm_2023_code.csv.gz", "conversation": "azure_llm_2023_conv.csv.gz"}
TRACES = (
    Trace(
        "twitter",
        Part(_TWITTER, 0, DAY_S, "day 1"),
        Part(_TWITTER, DAY_S, DAY_S, "day 2"),
        20,
    ),
    Trace(
        "nasa",
        Part("nasa_1995_day5.csv.gz", 0, DAY_S, "day 5"),
        Part("nasa_1995_days12-18.csv.gz", 4 * DAY_S, DAY_S, "day 16"),
        20,
    ),
    *(
        Trace(
            f"azure {name}",
            Part(file, 0, HOUR_S // 2, "first half hour"),
            Part(file, HOUR_S // 2, HOUR_S // 2, "second half hour"),
            40,
        )
        for name, file in _AZURE.items()
    ),
)
