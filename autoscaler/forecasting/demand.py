"""Forecast the demand that replicas must cover until one ordered now can serve, at a chosen risk.

A replica ordered now serves after the horizon. Until then, the current ones must cover the highest
required rate (`autoscaler.forecasting.load_history` defines it). How high that may be is learned
from the service's own past: each forecast of a pool is back-tested with the margin that it needs,
and the cheapest one is used (`autoscaler.forecasting.backtest`). Only the current forecast is
computed every second. Margins are measured every minute, and the forecast is chosen every ten.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoscaler.forecasting.backtest import (
    HEADROOM,
    Backtest,
    Candidate,
    Score,
    choose_cheapest,
    demand_cap_per_s,
    min_forecast_per_s,
)
from autoscaler.forecasting.load_history import STEP_S, WINDOW_S, LoadHistory
from autoscaler.forecasting.point_forecasts import HOLT, LAST, LINEAR, PEAKS, PointForecast
from autoscaler.forecasting.recurring import RECURRENCES, JumpCalendar
from policy.errors import InvalidInputError

FloatArray = NDArray[np.float64]

#: The share of a minute's requests that the required rate leaves unserved, for a forecaster by
#: itself. The autoscaler passes all that the SLA allows, 1% at 99%. Half of it costs more
#: and misses fewer minutes, as a lower risk does.
DEFAULT_UNSERVED_SHARE = 0.005
_CALIBRATE_EVERY_S = 60
_CHOOSE_EVERY_S = 600
_CHOOSE_AFTER_STEPS = 1800 // STEP_S
#: Share of the cost that a change of forecast must save.
_MIN_GAIN = 0.02
#: While the past is short: a burst that may come on top of the highest rate required of late.
#: After `_PRIOR_HORIZONS` it is the largest that came, if that is less, but at least `HEADROOM`.
_PRIOR_BURST = 0.3
_PRIOR_HORIZONS = 5
#: How long "of late" is: two minutes.
_PRIOR_STEPS = 120 // STEP_S
#: Limit on the steps by which missing reports lengthen the horizon.
_MAX_UNKNOWN_STEPS = 30
_STATE_VERSION = 5


def _pool(points: tuple[PointForecast, ...], recurring: bool) -> tuple[Candidate, ...]:
    recurrences = (None, *RECURRENCES) if recurring else (None,)
    return tuple(Candidate(point, recurrence) for recurrence in recurrences for point in points)


#: The candidates behind each value of the setting `forecast`; the first of a pool is preferred.
POOLS: Mapping[str, tuple[Candidate, ...]] = {
    "last": _pool((LAST,), recurring=False),
    "linear": _pool((LINEAR,), recurring=False),
    "auto": _pool((LAST, *PEAKS, LINEAR, HOLT), recurring=True),
    "peak": _pool(PEAKS, recurring=False),
    "holt": _pool((HOLT,), recurring=False),
    "recurring": _pool((LAST, *PEAKS), recurring=True)[1 + len(PEAKS) :],
}


@dataclass(frozen=True)
class _Present:
    """Forecasts of a candidate at the newest second, in requests per second.

    Attributes
    ----------
    expected_per_s, point_per_s : float
        Its point forecast, and the same with its lower bound.
    highest_per_s : float
        The highest rate required of late.
    cap_per_s : float
        The upper bound of a demand.
    recurring_per_s : float
        What the jumps expected before the horizon require.
    """

    expected_per_s: float
    point_per_s: float
    highest_per_s: float
    cap_per_s: float
    recurring_per_s: float


@dataclass(frozen=True)
class DemandForecast:
    """A forecast until the horizon.

    Attributes
    ----------
    expected_per_s : float
        The point forecast, in requests per second.
    demand_per_s : float
        The rate to size for, in requests per second; at least the required rate of the last minute.
    method : str
        Name of the forecast in use.
    margin : float
        demand_per_s / expected_per_s; 1 if nothing is expected.
    """

    expected_per_s: float
    demand_per_s: float
    method: str
    margin: float


class DemandForecaster:
    """Forecast the highest rate required until a horizon, from the load offered so far.

    Parameters
    ----------
    forecast : str
        The pool to choose from: a key of `POOLS`.
    unserved_share : float
        Fraction of a minute's requests that may go unserved, in [0, 1); 0 requires the highest
        second.

    Raises
    ------
    InvalidInputError
        There is no such pool, or the share is out of range.
    """

    def __init__(
        self, forecast: str = "auto", unserved_share: float = DEFAULT_UNSERVED_SHARE
    ) -> None:
        if forecast not in POOLS:
            raise InvalidInputError(
                f"forecast: must be one of {', '.join(POOLS)}, not {forecast!r}"
            )
        if not 0 <= unserved_share < 1:
            raise InvalidInputError(f"unserved_share: must be in [0, 1), not {unserved_share!r}")
        self._pool = POOLS[forecast]
        self._history = LoadHistory(unserved_share)
        self._score = Score(self._pool[0], 1.0, math.nan)
        self._fitted_for: tuple[int, float] | None = None
        self._calibrated = self._chosen = -math.inf
        self._prior_weight = 1.0
        self._prior_burst = _PRIOR_BURST
        self._calendar = JumpCalendar()
        self._newest = _Present(0.0, 0.0, 0.0, 0.0, 0.0)
        #: The second, horizon and candidate that `_newest` is for.
        self._present_for: tuple[int, int, Candidate] | None = None
        #: The peak expected by the calendar, and the step, horizon and candidate it is for.
        self._expected_peak: tuple[tuple[int, int, Candidate] | None, float] = (None, 0.0)

    def observe(self, time_s: float, rates_per_s: ArrayLike) -> None:
        """Add the rates of the newest whole seconds.

        Seconds that are known already are ignored. Missing seconds are a gap, from which nothing is
        learned.

        Parameters
        ----------
        time_s : float
            End of the last of the seconds.
        rates_per_s : array_like of float, shape (seconds,)
            Oldest first.

        Raises
        ------
        InvalidInputError
            A rate is negative or not finite.
        """
        rates = np.asarray(rates_per_s, dtype=np.float64)
        # The calendar must see each step before the history forgets it.
        parts = max(1, math.ceil(rates.size / 86_400)) if rates.ndim == 1 else 1
        left = rates.size
        for part in np.array_split(rates, parts) if parts > 1 else (rates,):
            left -= part.size
            self._history.observe(time_s - left, part)
            self._calendar.advance(self._history)

    @property
    def end_s(self) -> int | None:
        """Until when the load is known; None before the first rates."""
        return self._history.end_s

    @property
    def begin_s(self) -> int | None:
        """Since when the load is known, at most two days ago; None before the first rates."""
        return self._history.begin_s

    def go_on_with(self, newer: "DemandForecaster") -> None:
        """Take over what another forecaster has seen since, as if this one had seen it.

        This one's load must end before the other's first ten seconds begin.
        """
        self._history.append(newer._history)
        self._calendar.advance(self._history)
        self._forget_present()

    def rates_of_window(self, window_end_s: int) -> FloatArray | None:
        """Return the rates of the minute that ended then, in requests per second; None if unknown.

        Parameters
        ----------
        window_end_s : int
            At most half an hour ago.

        Returns
        -------
        ndarray of float, shape (60,)
            By the second, oldest first.
        """
        if self._history.end_s is None:
            return None
        rates, known = self._history.second_rates.values, self._history.second_known.values
        until = rates.size - (self._history.end_s - window_end_s)
        begin = until - WINDOW_S
        if begin < 0 or until > rates.size or not known[begin:until].all():
            return None
        return rates[begin:until]

    def forecast(self, now_s: float, horizon_s: float, risk: float = 0.01) -> DemandForecast | None:
        """Forecast the demand until a horizon.

        Parameters
        ----------
        now_s : float
            Whole steps of ten seconds before it that are not known yet lengthen the horizon.
        horizon_s : float
            Time until a replica ordered now serves.
        risk : float
            Fraction of the time in which a higher rate than the demand may be required before the
            horizon, in (0, 1).

        Returns
        -------
        DemandForecast or None
            None before the first rates.

        Raises
        ------
        InvalidInputError
            The horizon or the risk is out of range.
        """
        if not 0 < risk < 1:
            raise InvalidInputError(f"risk: must be above 0 and below 1, not {risk!r}")
        if not 0 <= horizon_s < math.inf:
            raise InvalidInputError(f"horizon_s: must be at least 0 and finite, not {horizon_s!r}")
        end_s = self._history.end_s
        if end_s is None:
            return None
        # In whole steps, so that the usual lag of a second or two has no effect.
        unknown_steps = math.floor(max(0.0, now_s - end_s) / STEP_S)
        steps_ahead = max(1, math.ceil(horizon_s / STEP_S)) + min(unknown_steps, _MAX_UNKNOWN_STEPS)
        self._fit(end_s, steps_ahead, risk)
        now = self._present(end_s, steps_ahead)
        # While the past is short, expect a burst on top of the highest rate of late.
        prior = (1 + self._prior_burst) * now.highest_per_s
        calibrated = min(self._score.margin * now.point_per_s, now.cap_per_s)
        demand = max(
            calibrated + self._prior_weight * max(0.0, prior - calibrated),
            now.recurring_per_s,
            self._history.required_rate_per_s,
        )
        expected, name = now.expected_per_s, self._score.candidate.name
        return DemandForecast(expected, demand, name, demand / expected if expected else 1.0)

    def _present(self, end_s: int, steps_ahead: int) -> _Present:
        """Return what the candidate in use makes of the newest second, computed once for it."""
        candidate = self._score.candidate
        wanted_for = (end_s, steps_ahead, candidate)
        if self._present_for != wanted_for:
            self._present_for = wanted_for
            history = self._history
            rates, required_rates = history.blocks()
            expected = float(candidate.point.values(rates, required_rates, steps_ahead)[-1])
            self._newest = _Present(
                expected_per_s=expected,
                point_per_s=max(expected, min_forecast_per_s(history.rates.values)),
                highest_per_s=float(required_rates[-_PRIOR_STEPS:].max()),
                cap_per_s=max(
                    demand_cap_per_s(history.required_rates.values),
                    (1 + HEADROOM) * float(required_rates.max()),
                ),
                recurring_per_s=self._expected_peak_per_s(steps_ahead),
            )
        return self._newest

    def _fit(self, end_s: int, steps_ahead: int, risk: float) -> None:
        """Measure the margin and choose the forecast again, if they are due."""
        fitted_ahead, fitted_risk = self._fitted_for or (0, risk)
        changed = steps_ahead != fitted_ahead or not 0.8 <= risk / fitted_risk <= 1.25
        if not changed and end_s - self._calibrated < _CALIBRATE_EVERY_S:
            return
        self._fitted_for, self._calibrated = (steps_ahead, risk), end_s
        backtest = Backtest(self._history, self._calendar, steps_ahead)
        # Measuring the quantile takes about 1 / risk independent horizons.
        horizons = backtest.steps / steps_ahead
        self._prior_weight = 1.0 / max(1.0, risk * horizons) ** 2
        seen = backtest.largest_rise(_PRIOR_STEPS) - 1 if horizons >= _PRIOR_HORIZONS else math.inf
        self._prior_burst = min(max(seen, HEADROOM), _PRIOR_BURST)
        current = self._score.candidate
        self._score = backtest.score(current, risk)
        if backtest.steps < _CHOOSE_AFTER_STEPS or len(self._pool) == 1:
            return
        if math.isinf(self._score.cost_per_s) or end_s - self._chosen >= _CHOOSE_EVERY_S:
            self._chosen = end_s
            self._score = choose_cheapest(backtest.scores(self._pool, risk), current, _MIN_GAIN)

    def _expected_peak_per_s(self, steps_ahead: int) -> float:
        candidate, end_s = self._score.candidate, self._history.end_s
        if candidate.recurrence is None or end_s is None:
            return 0.0
        wanted_for = (end_s // STEP_S, steps_ahead, candidate)
        if self._expected_peak[0] != wanted_for:
            peak = self._calendar.expected_peak(self._history, candidate.recurrence, steps_ahead)
            self._expected_peak = (wanted_for, peak)
        return self._expected_peak[1]

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Copy all that was learned, and return a function that packs it for `load_state`."""
        method, history = self._score.candidate.name, self._history.snapshot()
        calendar = self._calendar.snapshot()
        return lambda: {
            "version": _STATE_VERSION,
            "method": method,
            "history": history(),
            "calendar": calendar(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return all that was learned as plain numbers, text and dicts."""
        return self.snapshot()()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises
        ------
        InvalidInputError
            The state has another version or form. The forecaster is then unchanged.
        """
        if not isinstance(state, Mapping) or state.get("version") != _STATE_VERSION:
            raise InvalidInputError(f"forecast state: must have version {_STATE_VERSION}")
        try:
            calendar = JumpCalendar.from_state(state["calendar"])
            self._history.load_state(state["history"])
            method = str(state["method"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(f"forecast state: not usable ({error!r})") from error
        self._calendar = calendar
        candidate = next((one for one in self._pool if one.name == method), self._pool[0])
        self._score = Score(candidate, 1.0, math.nan)
        self._fitted_for, self._chosen = None, -math.inf
        self._forget_present()

    def _forget_present(self) -> None:
        """Compute anew what depends on the past, which has changed."""
        self._present_for, self._expected_peak = None, (None, 0.0)
