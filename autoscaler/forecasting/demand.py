"""The demand that replicas must meet until one ordered now serves, at a chosen risk.

Replicas ordered now serve after the horizon, so they must cover the highest rate required until
then (`autoscaler.forecasting.load_history` says what is required). How high that may be is learned from the
service's own past: each forecast of a pool is back-tested with the margin that it needs there, and
the cheapest is used (`autoscaler.forecasting.backtest`). Of all this only the present forecast is computed
every second; margins are measured anew every minute, and the choice is made every ten.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from autoscaler.forecasting.backtest import (
    HEADROOM,
    Backtest,
    Candidate,
    Score,
    ceiling,
    cheapest,
    least_forecast,
)
from autoscaler.forecasting.load_history import STEP_S, LoadHistory
from autoscaler.forecasting.point_forecasts import HOLT, LAST, LINEAR, PEAKS, PointForecast
from autoscaler.forecasting.recurring import RECURRENCES, SLOW_STEPS, Rounds
from policy.errors import InvalidInputError

#: Share of a minute's requests that the required rate leaves out: half of the 1% that may be late
#: at 99%, since some will be late by chance within a second.
LATE_SHARE = 0.005
_CALIBRATE_EVERY_S = 60
_CHOOSE_EVERY_S = 600
_CHOOSE_AFTER_STEPS = 1800 // STEP_S
#: Share of the cost that another forecast must save.
_GAIN = 0.02
#: Before the past says better: what may come over the highest rate required in two minutes.
_PRIOR_BURST = 0.3
_PRIOR_STEPS = 120 // STEP_S
#: Steps without news by which the horizon grows at most.
_MOST_UNKNOWN = 30
_STATE_VERSION = 2


def _pool(points: tuple[PointForecast, ...], recurring: bool) -> tuple[Candidate, ...]:
    recurrences = (None, *RECURRENCES) if recurring else (None,)
    return tuple(Candidate(point, recurrence) for recurrence in recurrences for point in points)


#: What each value of the setting `forecast` chooses from; the first of a pool is preferred.
POOLS: Mapping[str, tuple[Candidate, ...]] = {
    "last": _pool((LAST,), recurring=False),
    "linear": _pool((LINEAR,), recurring=False),
    "auto": _pool((LAST, *PEAKS, LINEAR, HOLT), recurring=True),
    "peak": _pool(PEAKS, recurring=False),
    "holt": _pool((HOLT,), recurring=False),
    "recurring": _pool((LAST, *PEAKS), recurring=True)[1 + len(PEAKS) :],
}


@dataclass(frozen=True)
class DemandForecast:
    """What is to come until the horizon.

    Attributes
    ----------
    expected_per_s : float
        The point forecast.
    demand_per_s : float
        What replicas should be sized for; never below what the last minute required.
    method : str
        The forecast in use.
    margin : float
        demand_per_s over expected_per_s; 1 where nothing is expected.
    """

    expected_per_s: float
    demand_per_s: float
    method: str
    margin: float


class DemandForecaster:
    """Forecasts the highest rate required until a horizon, from what has been offered so far.

    Parameters
    ----------
    forecast : str
        The pool to choose from; a key of `POOLS`.
    late_share : float
        Share of a minute's requests that may go unserved, in [0, 1); 0 asks for the highest second.

    Raises
    ------
    InvalidInputError
        There is no such pool, or the share is out of its range.
    """

    def __init__(self, forecast: str = "auto", late_share: float = LATE_SHARE) -> None:
        if forecast not in POOLS:
            raise InvalidInputError(
                f"forecast: must be one of {', '.join(POOLS)}, not {forecast!r}"
            )
        if not 0 <= late_share < 1:
            raise InvalidInputError(f"late_share: must be in [0, 1), not {late_share!r}")
        self._pool = POOLS[forecast]
        self._history = LoadHistory(late_share)
        self._score = Score(self._pool[0], 1.0, math.nan)
        self._fitted_for: tuple[int, float] | None = None
        self._calibrated = self._chosen = -_CHOOSE_EVERY_S
        self._surplus = 1.0
        self._rounds: Rounds | None = None

    def observe(self, time_s: float, rates_per_s: ArrayLike) -> None:
        """Take in the rates of the newest whole seconds, oldest first; the last ends at `time_s`.

        What is known already is ignored; seconds that nobody told of are a gap, from which
        nothing is learned.

        Raises
        ------
        InvalidInputError
            A rate is negative or not finite.
        """
        self._history.observe(time_s, rates_per_s)

    def forecast(self, now_s: float, horizon_s: float, risk: float = 0.01) -> DemandForecast | None:
        """Forecast the demand over a horizon; None before the first rates.

        Parameters
        ----------
        now_s : float
            Whole steps of ten seconds before it of which nothing is known yet add to the horizon.
        horizon_s : float
            Time until a replica ordered now serves.
        risk : float
            Share of the time in which more may be required until the horizon than is forecast,
            in (0, 1).

        Raises
        ------
        InvalidInputError
            The horizon or the risk is out of its range.
        """
        if not 0 < risk < 1:
            raise InvalidInputError(f"risk: must be above 0 and below 1, not {risk!r}")
        if not 0 <= horizon_s < math.inf:
            raise InvalidInputError(f"horizon_s: must be at least 0 and finite, not {horizon_s!r}")
        end_s = self._history.end_s
        if end_s is None:
            return None
        # In whole steps, so that the ordinary lag of a second or two changes nothing.
        unknown_steps = math.floor(max(0.0, now_s - end_s) / STEP_S)
        steps_ahead = max(1, math.ceil(horizon_s / STEP_S)) + min(unknown_steps, _MOST_UNKNOWN)
        self._fit(end_s, steps_ahead, risk)
        candidate, margin = self._score.candidate, self._score.margin
        rates, needs = self._history.blocks()
        expected = float(candidate.point.values(rates, needs, steps_ahead)[-1])
        point = max(expected, least_forecast(self._history.rates.values))
        # As long as the past is short, the highest of late and a burst on top.
        prior = (1 + _PRIOR_BURST) * float(needs[-_PRIOR_STEPS:].max())
        highest = max(ceiling(self._history.needs.values), (1 + HEADROOM) * float(needs.max()))
        calibrated = min(margin * point, highest)
        demand = max(
            calibrated + self._surplus * max(0.0, prior - calibrated),
            self._recurring(),
            self._history.need_per_s,
        )
        return DemandForecast(
            expected, demand, candidate.name, demand / expected if expected else 1.0
        )

    def _fit(self, end_s: int, steps_ahead: int, risk: float) -> None:
        """Measure margins anew, and choose anew, if it is time to."""
        changed = self._fitted_for != (steps_ahead, risk)
        if not changed and end_s - self._calibrated < _CALIBRATE_EVERY_S:
            return
        self._fitted_for, self._calibrated = (steps_ahead, risk), end_s
        backtest = Backtest(self._history, steps_ahead)
        # A quantile needs some 1 / risk independent horizons.
        horizons = backtest.steps / steps_ahead
        self._surplus = 1.0 / max(1.0, risk * horizons) ** 2
        self._rounds = backtest.rounds
        standing = self._score.candidate
        self._score = backtest.score(standing, risk)
        if backtest.steps < _CHOOSE_AFTER_STEPS or len(self._pool) == 1:
            return
        if math.isinf(self._score.cost_per_s) or end_s - self._chosen >= _CHOOSE_EVERY_S:
            self._chosen = end_s
            self._score = cheapest(backtest.scores(self._pool, risk), standing, _GAIN)

    def _recurring(self) -> float:
        recurrence, end_s = self._score.candidate.recurrence, self._history.end_s
        if recurrence is None or self._rounds is None or end_s is None:
            return 0.0
        slow = self._history.second_rates.values[-SLOW_STEPS * STEP_S :].mean()
        return self._rounds.floor_later(
            recurrence,
            (end_s - self._calibrated // STEP_S * STEP_S) // STEP_S,
            float(slow),
        )

    def state_dict(self) -> dict[str, Any]:
        """Give all that was learned, as plain numbers, text and tables."""
        return {
            "version": _STATE_VERSION,
            "method": self._score.candidate.name,
            "history": self._history.state_dict(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave; left as it was where that is not usable.

        Raises
        ------
        InvalidInputError
            The state is of another version, or not of this form.
        """
        if not isinstance(state, Mapping) or state.get("version") != _STATE_VERSION:
            raise InvalidInputError(f"forecast state: must be of version {_STATE_VERSION}")
        try:
            self._history.load_state(state["history"])
            method = str(state["method"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(f"forecast state: not usable ({error!r})") from error
        known = next((one for one in self._pool if one.name == method), self._pool[0])
        self._score = Score(known, 1.0, math.nan)
        self._fitted_for, self._chosen = None, -_CHOOSE_EVERY_S
        self._rounds = None
