"""Two days of offered load in compact form: arrival rates, and the rates required to serve them.

The SLA is kept or broken by the minute and not by the second: if 1% of a minute's requests are
late, "99% in time" still holds. So replicas need not cover a window's highest second, but its
*required rate*: the least service rate c that leaves no more than a share of the window's requests
unserved,

    Σ max(0, x_s - c) ≤ share · Σ x_s      over the seconds s of the window,

where x_s is the number of requests in second s. Noise in single seconds hardly moves the required
rate; a jump that lasts does.
"""

import base64
import math
import zlib
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from policy.errors import InvalidInputError

FloatArray = NDArray[np.float64]

#: Length of the window in which the SLA is judged.
WINDOW_S = 60
#: Length of a step of the long history.
STEP_S = 10
#: Length of the history by the second.
RECENT_S = 1800
#: Length of the history by steps: two days.
KEPT_STEPS = 2 * 86_400 // STEP_S

#: The series of a history, by the name of their attribute.
_SERIES = (
    *("second_rates", "second_required_rates", "second_known"),
    *("rates", "required_rates", "known"),
)


class RequiredRate:
    """Track the required rate of the last `window_s` seconds."""

    def __init__(self, unserved_share: float, window_s: int = WINDOW_S) -> None:
        self.unserved_share = unserved_share
        self._rates: deque[float] = deque(maxlen=window_s)
        self._sorted: list[float] = []

    @property
    def rates(self) -> list[float]:
        """The rates of the window, in requests per second, oldest first."""
        return list(self._rates)

    def push(self, rate_per_s: float) -> float:
        """Add the next second, and return the required rate of the window that ends with it."""
        ordered = self._sorted
        if len(self._rates) == self._rates.maxlen:
            del ordered[bisect_left(ordered, self._rates[0])]
        self._rates.append(rate_per_s)
        insort(ordered, rate_per_s)
        allowed = self.unserved_share * sum(ordered)
        # Lower c from the highest second, until what it cuts off uses up the share.
        for above in range(1, len(ordered)):
            cut = (ordered[-above] - ordered[-above - 1]) * above
            if cut >= allowed:
                return ordered[-above] - allowed / above
            allowed -= cut
        return ordered[0] - allowed / len(ordered)

    def clear(self) -> None:
        self._rates.clear()
        self._sorted.clear()


class LoadHistory:
    """The offered load: half an hour by the second, and two days by steps of ten seconds.

    Each series has its ``values``, oldest first: the arrival rate and the required rate in requests
    per second, and whether they are known (1). What no report covers is filled with the last known
    values and marked as not known (0).
    """

    def __init__(self, unserved_share: float = 0.01) -> None:
        self._window = RequiredRate(unserved_share)
        self.second_rates = RecentValues(RECENT_S)
        self.second_required_rates = RecentValues(RECENT_S)
        self.second_known = RecentValues(RECENT_S)
        self.rates = RecentValues(KEPT_STEPS)
        self.required_rates = RecentValues(KEPT_STEPS)
        self.known = RecentValues(KEPT_STEPS)
        self._end: int | None = None

    @property
    def unserved_share(self) -> float:
        """Fraction of a minute's requests that may go unserved; a change acts from now on."""
        return self._window.unserved_share

    @unserved_share.setter
    def unserved_share(self, share: float) -> None:
        if share != self._window.unserved_share:
            before, self._window = self._window, RequiredRate(share)
            for rate in before.rates:
                self._window.push(rate)

    @property
    def end_s(self) -> int | None:
        """The end of the newest second; None before the first."""
        return self._end

    @property
    def required_rate_per_s(self) -> float:
        return float(self.second_required_rates.values[-1]) if self._end is not None else 0.0

    def observe(self, time_s: float, rates_per_s: ArrayLike) -> None:
        """Add the rates of whole seconds until a time, oldest first.

        Seconds up to the newest known one are ignored. `InvalidInputError`: a value is negative or
        not finite.
        """
        rates = np.asarray(rates_per_s, dtype=np.float64)
        if not math.isfinite(time_s) or rates.ndim != 1:
            raise InvalidInputError("offered load: must be a finite time and one rate per second")
        end = round(time_s)
        if self._end is not None:
            rates = rates[max(0, rates.size - max(0, end - self._end)) :]
        if not rates.size:
            return
        if not (np.isfinite(rates).all() and rates.min() >= 0):
            raise InvalidInputError("offered load: rates must be finite and at least 0")
        start = end - rates.size
        if self._end is None:
            self._end = start
        if start > self._end:
            self._fill(start)
        for rate in rates.tolist():
            self._append(rate, self._window.push(rate), 1.0)

    def rates_of_minute(self, end_s: int) -> FloatArray | None:
        """Return the rates by the second of a minute; None if they are not all known."""
        if self._end is None:
            return None
        rates, known = self.second_rates.values, self.second_known.values
        until = rates.size - (self._end - end_s)
        begin = until - WINDOW_S
        if begin < 0 or until > rates.size or not known[begin:until].all():
            return None
        return rates[begin:until]

    def known_rates(self) -> FloatArray:
        """Return the newest rates by the second, as far back as all are known."""
        unknown = np.flatnonzero(self.second_known.values == 0)
        return self.second_rates.values[unknown[-1] + 1 if unknown.size else 0 :]

    def blocks(self) -> tuple[FloatArray, FloatArray]:
        """Return mean and highest required rates of the last half hour by steps of `STEP_S`.

        The steps end with the newest second, oldest first. If there are fewer seconds than a step
        has, both arrays have one entry.
        """
        rates, required = self.second_rates.values, self.second_required_rates.values
        whole = rates.size // STEP_S * STEP_S
        if not whole:
            return np.array([rates.mean()]), np.array([required.max()])
        return (
            rates[-whole:].reshape(-1, STEP_S).mean(axis=1),
            required[-whole:].reshape(-1, STEP_S).max(axis=1),
        )

    def _append(self, rate: float, required: float, known: float) -> None:
        assert self._end is not None
        self.second_rates.append(rate)
        self.second_required_rates.append(required)
        self.second_known.append(known)
        self._end += 1
        if self._end % STEP_S == 0:
            self.rates.append(float(self.second_rates.values[-STEP_S:].mean()))
            self.required_rates.append(float(self.second_required_rates.values[-STEP_S:].max()))
            self.known.append(float(self.second_known.values[-STEP_S:].min()))

    def _fill(self, until: int) -> None:
        """Repeat the last known values up to a time."""
        assert self._end is not None
        rates = self.second_rates.values[-STEP_S:]
        rate = float(rates.mean()) if rates.size else 0.0
        required = self.required_rate_per_s if rates.size else 0.0
        if until - self._end > WINDOW_S:
            self._window.clear()
        while self._end < until and self._end % STEP_S:
            self._append(rate, required, 0.0)
        steps = (until - self._end) // STEP_S
        for by_second, by_step, value in (
            (self.second_rates, self.rates, rate),
            (self.second_required_rates, self.required_rates, required),
            (self.second_known, self.known, 0.0),
        ):
            by_second.extend(value, steps * STEP_S)
            by_step.extend(value, steps)
        self._end += steps * STEP_S
        while self._end < until:
            self._append(rate, required, 0.0)

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Copy the history at once, and return a function that packs the copy for `load_state`.

        It returns plain text and numbers, about 0.1 MB for two days. Packing takes milliseconds,
        and any thread may do it.
        """
        end, window = self._end, self._window.rates
        copies = {name: values.values.copy() for name, values in self._series()}
        return lambda: {
            "end": end,
            "window": window,
            "series": {name: pack_values(values) for name, values in copies.items()},
        }

    def state_dict(self) -> dict[str, Any]:
        return self.snapshot()()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what the function of a `snapshot` returned; a wrong form changes nothing."""
        end = None if state["end"] is None else int(state["end"])
        window = [float(rate) for rate in state["window"]]
        unpacked = {name: unpack_values(state["series"][name]) for name, _ in self._series()}
        self._window.clear()
        for rate in window:
            self._window.push(rate)
        for name, values in self._series():
            values.replace(unpacked[name])
        self._end = end

    def _series(self) -> Iterable[tuple[str, "RecentValues"]]:
        return [(name, getattr(self, name)) for name in _SERIES]


class RecentValues:
    """The newest values of a series, in one contiguous array."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._buffer = np.zeros(2 * kept)
        self._end = 0

    @property
    def values(self) -> FloatArray:
        """The values, oldest first; an ndarray of float that later calls may change."""
        return self._buffer[max(0, self._end - self._kept) : self._end]

    def append(self, value: float) -> None:
        if self._end == self._buffer.size:
            self.replace(self.values)
        self._buffer[self._end] = value
        self._end += 1

    def extend(self, value: float, times: int) -> None:
        if times:
            added = np.full(min(times, self._kept), value)
            self.replace(np.concatenate((self.values, added)))

    def replace(self, values: FloatArray) -> None:
        kept = values[-self._kept :].copy()
        self._buffer[: kept.size] = kept
        self._end = kept.size


def pack_values(values: NDArray[np.floating[Any]]) -> list[Any]:
    """Return values to three digits, which is more than a forecast needs, ready for JSON."""
    unit = float(values.max(initial=0.0)) / 2**15 or 1.0
    halves = (values / unit).astype(np.float16)
    # Both release or hardly hold the interpreter's lock, unlike base 85.
    return [unit, base64.b64encode(zlib.compress(halves.tobytes())).decode()]


def unpack_values(packed: list[Any]) -> FloatArray:
    """Return what `pack_values` packed, or raise TypeError or ValueError."""
    unit, text = packed
    try:
        halves = np.frombuffer(
            zlib.decompress(base64.b64decode(text, validate=True)), dtype=np.float16
        )
    except zlib.error as error:
        raise ValueError(str(error)) from error
    values = float(unit) * halves.astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("values are not finite")
    return values
