"""The schedule of a load test: when each request is due, fixed before the test begins.

Arrivals are a Poisson process whose rate is constant, or changes in steps or ramps; or they follow
a trace of requests per second. This is an open loop: as with real clients, requests become due
whether or not the service keeps up. Response times are measured from when a request was due, so
every request that was due during a stall shows it. A generator that waits for an answer before it
sends the next request shows only one ("coordinated omission").
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policy.errors import InvalidInputError

FloatArray = NDArray[np.float64]

MAX_REQUESTS = 20_000_000
_PART = re.compile(
    r"(?P<duration>[0-9.]+)(?P<unit>ms|s|m|h):(?P<rate>[0-9.]+)(?:-(?P<to>[0-9.]+))?"
)
_FORM = "DURATION:RATE or DURATION:FROM-TO, as in 20s:50,1m:50-150,30s:50"
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Step:
    """A part of the test: the arrival rate is constant (0: a pause), or changes linearly."""

    duration_s: float
    from_per_s: float
    to_per_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.duration_s < math.inf:
            raise InvalidInputError(f"duration: must be above 0 s, not {self.duration_s}")
        for rate_per_s in (self.from_per_s, self._end_per_s):
            if not 0 <= rate_per_s < math.inf:
                raise InvalidInputError(
                    f"arrival rate: must be at least 0 requests/s, not {rate_per_s}"
                )

    @property
    def _end_per_s(self) -> float:
        return self.from_per_s if self.to_per_s is None else self.to_per_s

    @property
    def arrival_rate_per_s(self) -> float:
        """The mean arrival rate."""
        return (self.from_per_s + self._end_per_s) / 2

    def in_words(self) -> str:
        if self.to_per_s is None:
            return f"{self.from_per_s:g} requests/s for {self.duration_s:g} s"
        return f"{self.from_per_s:g} to {self.to_per_s:g} requests/s in {self.duration_s:g} s"

    def arrivals_s(self, random: np.random.Generator) -> FloatArray:
        """Draw arrivals, ascending, in seconds from the part's start."""
        # Given their number, the arrivals of a Poisson process are independent and uniform.
        highest = max(self.from_per_s, self._end_per_s)
        count = random.poisson(self.duration_s * highest)
        arrivals_s = np.sort(random.uniform(0.0, self.duration_s, count))
        if self.to_per_s is None:
            return arrivals_s
        # Thinning: an arrival at the highest rate stays with probability rate/highest rate.
        share = arrivals_s / self.duration_s
        rates = self.from_per_s + (self.to_per_s - self.from_per_s) * share
        return arrivals_s[random.uniform(0.0, highest, arrivals_s.size) < rates]


@dataclass(frozen=True, eq=False)
class Schedule:
    """When each request of a load test is due, in ascending seconds from the start, and its steps.

    A trace is one step at its mean rate.
    """

    arrivals_s: FloatArray
    steps: tuple[Step, ...]

    @property
    def duration_s(self) -> float:
        return sum(step.duration_s for step in self.steps)

    @property
    def step_starts_s(self) -> FloatArray:
        """Start of each step and end of the last, in seconds, shape (steps + 1,)."""
        return np.cumsum([0.0, *(step.duration_s for step in self.steps)])


def parse_shape(text: str) -> tuple[Step, ...]:
    """Parse a load shape such as ``20s:50,1m:50-150,30s:50``."""
    return tuple(_parse_part(part.strip()) for part in text.split(","))


def _parse_part(text: str) -> Step:
    match = _PART.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        duration_s = float(match["duration"]) * _UNIT_S[match["unit"]]
        rate_per_s = float(match["rate"])
        to_per_s = None if match["to"] is None else float(match["to"])
    except ValueError:
        raise InvalidInputError(f"shape: {text!r} is not {_FORM}") from None
    return Step(duration_s, rate_per_s, to_per_s)


def poisson_schedule(steps: Sequence[Step], seed: int) -> Schedule:
    """Draw Poisson arrivals whose rate follows `steps`; none, or too many, are an error."""
    expected = sum(step.duration_s * step.arrival_rate_per_s for step in steps)
    if not 0 < expected <= MAX_REQUESTS:
        raise InvalidInputError(
            f"load: {expected:.0f} requests expected; must be above 0, at most {MAX_REQUESTS}"
        )
    random = np.random.default_rng(seed)
    starts_s = np.cumsum([0.0, *(step.duration_s for step in steps)])
    pieces = [
        start_s + step.arrivals_s(random) for start_s, step in zip(starts_s, steps, strict=False)
    ]
    arrivals_s = np.concatenate(pieces)
    if not arrivals_s.size:
        raise InvalidInputError(
            f"load: no request becomes due with seed {seed}, {expected:.2g} expected; give a "
            "higher rate or a longer time"
        )
    return Schedule(arrivals_s, tuple(steps))


def trace_schedule(
    requests_per_second: NDArray[np.int64],
    speedup: float,
    seed: int,
    duration_s: float | None = None,
) -> Schedule:
    """Replay a trace: exactly its requests per second, at random times within each second.

    A second of the test is `speedup` seconds of the trace, which multiplies the rates; a longer
    trace is cut to `duration_s`. No request, or too many, are an error.
    """
    trace_s = float(requests_per_second.size)
    if duration_s is not None:
        trace_s = min(trace_s, duration_s * speedup)
    counts = requests_per_second[: math.ceil(trace_s)]
    if counts.sum() > MAX_REQUESTS:
        raise InvalidInputError(f"trace: {counts.sum()} requests; at most {MAX_REQUESTS}")
    random = np.random.default_rng(seed)
    seconds = np.repeat(np.arange(counts.size), counts)
    arrivals = np.sort(seconds + random.uniform(size=seconds.size))
    arrivals_s = arrivals[arrivals < trace_s] / speedup
    if not arrivals_s.size:
        raise InvalidInputError("trace: no requests in the part to replay")
    length_s = trace_s / speedup
    return Schedule(arrivals_s, (Step(length_s, arrivals_s.size / length_s),))
