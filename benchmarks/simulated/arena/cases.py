"""The cases of `benchmarks.simulated.autoscaler`: traces, services, and contenders."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from simulator.autoscalers.registry import AUTOSCALERS
from simulator.scenario import Scenario
from simulator.trace import load_trace

FloatArray = NDArray[np.float64]

START_TIMES_S = (10, 60, 300)
#: The start time at which knobs are varied.
CURVE_START_TIME_S = 60
HOUR_S = 3600

#: What a tuned Ray sets besides its target, to react at once to reports of every second.
FAST_RAY = {"upscale_delay_s": 0.0, "look_back_period_s": 10.0, "metrics_interval_s": 1.0}


@dataclass(frozen=True, eq=False)
class Service:
    """A model on a device, and the SLA of its requests.

    Attributes
    ----------
    name : str
    profile : Profile
    objective : ServiceLevelObjective
    """

    name: str
    profile: Profile
    objective: ServiceLevelObjective


@cache
def sla_rate_per_s(service: Service) -> float:
    """Return the highest rate at which one replica meets the SLA, as replicas report it."""
    curve = Scenario(service.profile, service.objective, np.ones(1)).load_lateness_curve()
    assert curve is not None
    return curve.sla_rate_per_s


@dataclass(frozen=True)
class Slice:
    """A part of a trace, scaled to a peak.

    Attributes
    ----------
    begin_s, length_s : int
    peak : int
        How many replicas the busiest second needs after scaling.
    """

    begin_s: int
    length_s: int
    peak: int


@dataclass(frozen=True)
class Trace:
    """A load, and the part of it that each service is given.

    Attributes
    ----------
    name : str
    file : str or None
        Its file in the folder of traces; None for the synthetic load.
    slices : mapping of str to Slice
        The part for each service, by the service's name.
    """

    name: str
    file: str | None
    slices: Mapping[str, Slice]

    def counts(self, service: Service, folder: Path | None) -> FloatArray:
        """Read or generate the requests of each second, scaled to the slice's peak.

        Returns
        -------
        FloatArray, shape (slice.length_s,)
        """
        part = self.slices[service.name]
        whole = (
            synthetic_day(2 * HOUR_S, seed=7)
            if self.file is None or folder is None
            else load_trace(folder / self.file).astype(float)
        )
        counts = whole[part.begin_s : part.begin_s + part.length_s]
        peak_per_s = part.peak * sla_rate_per_s(service)
        return counts * (peak_per_s / float(counts.max()))


#: In full runs the slow service gets whole traces. The fast one, which takes twenty times the
#: requests per second, gets parts of them. Quick runs take some hours, on the slow service alone.
TRACES = (
    Trace(
        "twitter",
        "twitter_2021_08_days1-2.csv.gz",
        {"slow": Slice(0, 24 * HOUR_S, 20), "p4": Slice(6 * HOUR_S, 2400, 8)},
    ),
    Trace(
        "nasa",
        "nasa_1995_day5.csv.gz",
        {"slow": Slice(0, 24 * HOUR_S, 40), "p4": Slice(14 * HOUR_S, 2400, 8)},
    ),
    Trace(
        "azure code",
        "azure_llm_2023_code.csv.gz",
        {"slow": Slice(0, HOUR_S, 40), "p4": Slice(0, 2400, 8)},
    ),
    Trace(
        "azure conversation",
        "azure_llm_2023_conv.csv.gz",
        {"slow": Slice(0, HOUR_S, 40), "p4": Slice(0, 2400, 8)},
    ),
)
QUICK_TRACES = tuple(
    Trace(trace.name, trace.file, {"slow": Slice(begin_s, length_s, 20)})
    for trace, begin_s, length_s in zip(
        TRACES,
        (4 * HOUR_S, 12 * HOUR_S, 0, 0),
        (6 * HOUR_S, 4 * HOUR_S, HOUR_S, HOUR_S),
        strict=True,
    )
)
SYNTHETIC = Trace("synthetic", None, {"slow": Slice(0, 2 * HOUR_S, 40), "p4": Slice(0, 2400, 8)})
QUICK_SYNTHETIC = Trace("synthetic", None, {"slow": Slice(0, 2 * HOUR_S, 20)})


def synthetic_day(seconds: int, seed: int) -> FloatArray:
    """Generate a day's load compressed into `seconds`: a daily swing, noise, bursts, clocked steps.

    Returns
    -------
    FloatArray, shape (seconds,)
        Requests of each second, about ten on average.
    """
    random = np.random.default_rng(seed)
    time = np.arange(seconds)
    rate = 10 - 6 * np.cos(2 * np.pi * time / seconds)
    # Bursts of half a minute at double the rate, four an hour; steps of two minutes, two an hour.
    for begin in np.flatnonzero(random.random(seconds) < 4 / HOUR_S):
        rate[begin : begin + 30] *= 2
    rate *= np.where(time % (HOUR_S // 2) < 120, 1.5, 1.0)
    return random.poisson(rate).astype(float)


@dataclass(frozen=True)
class Contender:
    """An autoscaler with its settings.

    Attributes
    ----------
    family : str
        A name of `AUTOSCALERS`, whose oracle covers every second, or "window oracle".
    knob : float or None
        None for the default: as published, or as Sojourn ships.
    settings : tuple of (str, float)
        Further settings.
    """

    family: str
    knob: float | None = None
    settings: tuple[tuple[str, float], ...] = ()

    @property
    def label(self) -> str:
        """The family's name with all that is set."""
        parts = [] if self.knob is None else [f"{self.knob:g}"]
        parts += [f"{name} {value:g}" for name, value in self.settings]
        return f"{self.family} ({', '.join(parts)})" if parts else self.family


#: The families with a knob, along which a curve is drawn.
CURVES = tuple(name for name, entry in AUTOSCALERS.items() if entry.curve)
#: Run in every cell, with default settings.
ORACLES = (Contender("oracle"), Contender("window oracle"))
STOCK = (*map(Contender, ("static", *CURVES)),)
#: Tuned by a grid search at one start time; the best then runs in all cells.
TUNED = ("ray", "knative")


def curve(family: str, quick: bool) -> tuple[Contender, ...]:
    """Return a family's contenders along its knob; for the tuned families, the grid."""
    values = AUTOSCALERS[family].curve[:: 2 if quick else 1]
    others: tuple[tuple[tuple[str, float], ...], ...] = ((),)
    if family == "ray":
        others = tuple(
            tuple({**FAST_RAY, "downscale_delay_s": delay_s}.items()) for delay_s in (60.0, 600.0)
        )
    elif family == "knative":
        others = ((), (("scale_down_delay_s", 300.0),))
    return tuple(
        Contender(family, *chosen) for chosen in product(values, others[: 1 if quick else 2])
    )


def services(googlenet: Profile) -> tuple[Service, ...]:
    """Return the two services: GoogLeNet within 50 ms, and 20 times slower within 500 ms."""
    energy_mj = googlenet.energy_mj
    slow = Profile(
        googlenet.model,
        f"{googlenet.device}, 20 times slower",
        20 * googlenet.latency_ms,
        None if energy_mj is None else 20 * energy_mj,
    )
    return (
        Service("slow", slow, ServiceLevelObjective(500, 99)),
        Service("p4", googlenet, ServiceLevelObjective(50, 99)),
    )
