"""Two days of offered load, compact: what was asked for, and what rate it took to serve it.

The SLA is kept or broken window by window, and not second by second: a minute whose 1% of requests
come too late still meets "99% in time". So what replicas must cover is not the highest second of a
window but its *required rate*, the least service rate c that leaves no more than a share of the
window's requests unserved,

    Σ max(0, x_s - c) ≤ share · Σ x_s      over the seconds s of the window,

with x_s the requests of second s. Noise of single seconds hardly moves it, a jump that lasts does.
"""

import base64
import math
import zlib
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from policy.errors import InvalidInputError

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

#: The window in which the SLA is judged.
WINDOW_S = 60
#: Length of a step of the long history.
STEP_S = 10
#: Seconds that are kept one by one.
RECENT_S = 1800
#: Steps that are kept: two days.
KEPT_STEPS = 2 * 86_400 // STEP_S


class RequiredRate:
    """The required rate of the last `window_s` seconds, second by second.

    Parameters
    ----------
    late_share : float
        Share of the window's requests that may go unserved; 0 asks for the highest second.
    window_s : int
    """

    def __init__(self, late_share: float, window_s: int = WINDOW_S) -> None:
        self._late_share = late_share
        self._rates: deque[float] = deque(maxlen=window_s)
        self._sorted: list[float] = []

    def push(self, rate_per_s: float) -> float:
        """Take in the next second; give the required rate of the window that ends with it."""
        ordered = self._sorted
        if len(self._rates) == self._rates.maxlen:
            del ordered[bisect_left(ordered, self._rates[0])]
        self._rates.append(rate_per_s)
        insort(ordered, rate_per_s)
        allowed = self._late_share * sum(ordered)
        # From the highest second down, as far as what is cut off stays within the share.
        for above in range(1, len(ordered)):
            cut = (ordered[-above] - ordered[-above - 1]) * above
            if cut >= allowed:
                return ordered[-above] - allowed / above
            allowed -= cut
        return ordered[0] - allowed / len(ordered)

    def clear(self) -> None:
        """Forget the window."""
        self._rates.clear()
        self._sorted.clear()


class LoadHistory:
    """What is known of the offered load: half an hour by the second, two days by ten seconds.

    Seconds that nobody told of are filled with what was known last, and marked as not known.

    Parameters
    ----------
    late_share : float
        See `RequiredRate`.
    """

    def __init__(self, late_share: float) -> None:
        self._window = RequiredRate(late_share)
        self.second_rates = _Tail(RECENT_S)
        self.second_needs = _Tail(RECENT_S)
        self.second_known = _Tail(RECENT_S)
        self.rates = _Tail(KEPT_STEPS)
        self.needs = _Tail(KEPT_STEPS)
        self.known = _Tail(KEPT_STEPS)
        self._end: int | None = None

    @property
    def end_s(self) -> int | None:
        """End of the last second known; None before the first."""
        return self._end

    @property
    def need_per_s(self) -> float:
        """Required rate of the last minute."""
        return float(self.second_needs.values[-1]) if self._end is not None else 0.0

    def observe(self, time_s: float, rates_per_s: ArrayLike) -> None:
        """Take in the rates of whole seconds, oldest first, the last of which ends at `time_s`.

        What is known already is ignored, and so is what is older than it.

        Raises
        ------
        InvalidInputError
            A rate is negative or not finite, or the time is not finite.
        """
        rates = np.asarray(rates_per_s, dtype=np.float64)
        if not math.isfinite(time_s) or rates.ndim != 1:
            raise InvalidInputError("offered load: needs a finite time and one rate per second")
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

    def blocks(self) -> tuple[FloatArray, FloatArray]:
        """Give rates and required rates by steps of `STEP_S` that end now, up to half an hour.

        Returns
        -------
        (ndarray of float, shape (steps,)), (ndarray of float, shape (steps,))
            Mean rate, and highest required rate, of each step; oldest first. Less than a step's
            worth of seconds is one step.
        """
        rates, needs = self.second_rates.values, self.second_needs.values
        whole = rates.size // STEP_S * STEP_S
        if not whole:
            return np.array([rates.mean()]), np.array([needs.max()])
        return (
            rates[-whole:].reshape(-1, STEP_S).mean(axis=1),
            needs[-whole:].reshape(-1, STEP_S).max(axis=1),
        )

    def _append(self, rate: float, need: float, known: float) -> None:
        assert self._end is not None
        self.second_rates.append(rate)
        self.second_needs.append(need)
        self.second_known.append(known)
        self._end += 1
        if self._end % STEP_S == 0:
            self.rates.append(float(self.second_rates.values[-STEP_S:].mean()))
            self.needs.append(float(self.second_needs.values[-STEP_S:].max()))
            self.known.append(float(self.second_known.values[-STEP_S:].min()))

    def _fill(self, until: int) -> None:
        """Carry on what was known last, up to a time."""
        assert self._end is not None
        rates = self.second_rates.values[-STEP_S:]
        rate = float(rates.mean()) if rates.size else 0.0
        need = self.need_per_s if rates.size else 0.0
        if until - self._end > WINDOW_S:
            self._window.clear()
        while self._end < until and self._end % STEP_S:
            self._append(rate, need, 0.0)
        steps = (until - self._end) // STEP_S
        for tail, value in (
            (self.second_rates, rate),
            (self.second_needs, need),
            (self.second_known, 0.0),
        ):
            tail.extend(value, steps * STEP_S)
        for tail, value in ((self.rates, rate), (self.needs, need), (self.known, 0.0)):
            tail.extend(value, steps)
        self._end += steps * STEP_S
        while self._end < until:
            self._append(rate, need, 0.0)

    def state_dict(self) -> dict[str, Any]:
        """Give all that is known as plain text and numbers; about 0.1 MB for two days."""
        return {
            "end": self._end,
            "window": list(self._window._rates),
            "tails": {name: tail.packed() for name, tail in self._tails()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave; `KeyError`, `TypeError`, `ValueError` if unusable."""
        end = None if state["end"] is None else int(state["end"])
        window = [float(rate) for rate in state["window"]]
        unpacked = {name: _unpacked(state["tails"][name]) for name, _ in self._tails()}
        self._window.clear()
        for rate in window:
            self._window.push(rate)
        for name, tail in self._tails():
            tail.replace(unpacked[name])
        self._end = end

    def _tails(self) -> Iterable[tuple[str, "_Tail"]]:
        names = ("second_rates", "second_needs", "second_known", "rates", "needs", "known")
        return [(name, getattr(self, name)) for name in names]


class _Tail:
    """The last values of a series, always contiguous."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._buffer = np.zeros(2 * kept)
        self._end = 0

    @property
    def values(self) -> FloatArray:
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

    def packed(self) -> list[Any]:
        """Give the values at three digits, which is more than a forecast needs."""
        values = self.values
        unit = float(values.max(initial=0.0)) / 2**15 or 1.0
        halves = (values / unit).astype(np.float16)
        return [unit, base64.b85encode(zlib.compress(halves.tobytes())).decode()]


def _unpacked(packed: list[Any]) -> FloatArray:
    unit, text = packed
    try:
        halves = np.frombuffer(zlib.decompress(base64.b85decode(text)), dtype=np.float16)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    values = float(unit) * halves.astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("values are not finite")
    return values
