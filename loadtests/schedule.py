"""The schedule of a load test: when each request is due, fixed before the test begins.

Arrivals are a Poisson process whose rate changes in steps, or follow a trace of requests per
second. This is an open loop: as with real clients, requests become due whether or not the service
keeps up. Response times are measured from when a request was due, so every request that was due
during a stall of the service shows it. A generator that waits for answers before it sends the next
request shows only one ("coordinated omission").
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
_STEP = re.compile(r"(?P<duration>[0-9.]+)(?P<unit>ms|s|m|h):(?P<rate>[0-9.]+)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Step:
    """A part of the test with a constant arrival rate.

    Attributes
    ----------
    duration_s : float
        Length in seconds, above 0.
    arrival_rate_per_s : float
        Requests per second; 0 is a pause.

    Raises
    ------
    InvalidInputError
        The duration is not finite and above 0, or the rate is not finite and at least 0.
    """

    duration_s: float
    arrival_rate_per_s: float

    def __post_init__(self) -> None:
        if not 0 < self.duration_s < math.inf:
            raise InvalidInputError(f"duration: must be above 0 s, not {self.duration_s}")
        if not 0 <= self.arrival_rate_per_s < math.inf:
            raise InvalidInputError(
                f"arrival rate: must be at least 0 requests/s, not {self.arrival_rate_per_s}"
            )


@dataclass(frozen=True, eq=False)
class Schedule:
    """The arrivals of a load test.

    Attributes
    ----------
    arrivals_s : ndarray of float, shape (n,)
        Seconds from the start at which each request is due, ascending.
    steps : tuple of Step
        The rates that the arrivals were drawn from, in order; a trace is one step at its mean rate.
    """

    arrivals_s: FloatArray
    steps: tuple[Step, ...]

    @property
    def duration_s(self) -> float:
        """Length of the schedule in seconds."""
        return sum(step.duration_s for step in self.steps)

    @property
    def step_starts_s(self) -> FloatArray:
        """Start of each step and end of the last, in seconds, shape (steps + 1,)."""
        return np.cumsum([0.0, *(step.duration_s for step in self.steps)])


def parse_shape(text: str) -> tuple[Step, ...]:
    """Parse steps of the form ``DURATION:RATE,…``, such as ``20s:50,1m:150,30s:50``.

    Parameters
    ----------
    text : str
        Durations in ms, s, m or h; rates in requests per second.

    Returns
    -------
    tuple of Step

    Raises
    ------
    InvalidInputError
        A step is malformed.
    """
    steps = []
    for part in text.split(","):
        match = _STEP.fullmatch(part.strip())
        try:
            if match is None:
                raise ValueError
            step = Step(float(match["duration"]) * _UNIT_S[match["unit"]], float(match["rate"]))
        except ValueError:
            raise InvalidInputError(
                f"shape: {part.strip()!r} is not DURATION:RATE, as in 20s:50,1m:150,30s:50"
            ) from None
        steps.append(step)
    return tuple(steps)


def poisson_schedule(steps: Sequence[Step], seed: int) -> Schedule:
    """Draw Poisson arrivals whose rate follows `steps`.

    Parameters
    ----------
    steps : sequence of Step
        At least one.
    seed : int
        The same seed gives the same arrivals.

    Returns
    -------
    Schedule

    Raises
    ------
    InvalidInputError
        The expected number of requests is 0 or more than 20 million.
    """
    expected = sum(step.duration_s * step.arrival_rate_per_s for step in steps)
    if not 0 < expected <= MAX_REQUESTS:
        raise InvalidInputError(
            f"load: {expected:.0f} requests expected; must be above 0, at most {MAX_REQUESTS}"
        )
    random = np.random.default_rng(seed)
    pieces = []
    start_s = 0.0
    for step in steps:
        # Given their number, the arrivals of a Poisson process are independent and uniform.
        count = random.poisson(step.duration_s * step.arrival_rate_per_s)
        pieces.append(np.sort(random.uniform(start_s, start_s + step.duration_s, count)))
        start_s += step.duration_s
    return Schedule(np.concatenate(pieces), tuple(steps))


def trace_schedule(
    requests_per_second: NDArray[np.int64],
    speedup: float,
    seed: int,
    duration_s: float | None = None,
) -> Schedule:
    """Replay a trace: exactly its requests, at random times within each second.

    Parameters
    ----------
    requests_per_second : ndarray of int, shape (seconds,)
        The trace, as from `autoscaler.history.traces.load_trace`.
    speedup : float
        Seconds of the trace per second of the test; it multiplies the rates.
    seed : int
        The same seed gives the same arrivals.
    duration_s : float, optional
        Length of the test, if the trace is longer.

    Returns
    -------
    Schedule

    Raises
    ------
    InvalidInputError
        The speed-up or the duration is not above 0, or the number of requests is 0 or more than
        20 million.
    """
    if not 0 < speedup < math.inf:
        raise InvalidInputError(f"speedup: must be above 0, not {speedup}")
    trace_s = float(requests_per_second.size)
    if duration_s is not None:
        if not 0 < duration_s < math.inf:
            raise InvalidInputError(f"duration: must be above 0 s, not {duration_s}")
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
