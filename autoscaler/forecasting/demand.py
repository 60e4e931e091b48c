"""Forecast the demand that replicas must cover until one ordered now can serve, at a chosen risk.

A replica ordered now serves after the horizon. Until then, the current ones must cover the highest
required rate (`autoscaler.forecasting.load_history` defines it). How high that may be is learned
from the service's own past: each candidate forecast is back-tested with the margin that it needs,
and the cheapest one is used (`autoscaler.forecasting.backtest`). Only the current forecast is
computed every second. Margins are measured every minute, and the forecast is chosen every ten.
"""

import math
from dataclasses import dataclass

from autoscaler.forecasting.backtest import (
    HEADROOM,
    Backtest,
    Candidate,
    Score,
    choose_cheapest,
    demand_cap_per_s,
    min_forecast_per_s,
)
from autoscaler.forecasting.load_history import STEP_S, LoadHistory
from autoscaler.forecasting.point_forecasts import LAST, LINEAR, PEAKS
from autoscaler.forecasting.recurring import RECURRENCES, expected_peaks, jump_heights
from policy.errors import InvalidInputError

#: The candidates; the first is preferred.
CANDIDATES = tuple(
    Candidate(point, recurrence)
    for recurrence in (None, *RECURRENCES)
    for point in (LAST, *PEAKS, LINEAR)
)
_CALIBRATE_EVERY_S = 60
_CHOOSE_EVERY_S = 600
_CHOOSE_AFTER_STEPS = 1800 // STEP_S
#: Share of the cost that a change of forecast must save.
_MIN_GAIN = 0.02
#: While the past is short, a demand may exceed its highest required rate by this share instead of
#: `HEADROOM`, and exceeds that of the last two minutes by as much.
_YOUNG_HEADROOM = 0.2
_PRIOR_STEPS = 120 // STEP_S  # two minutes
#: Limit on the steps by which missing reports lengthen the horizon.
_MAX_UNKNOWN_STEPS = 30


@dataclass(frozen=True)
class DemandForecast:
    """A forecast until the horizon, in requests per second.

    The demand is the rate to size for, at least the required rate of the last minute.
    """

    expected_per_s: float
    demand_per_s: float
    method: str

    @property
    def margin(self) -> float:
        """demand_per_s / expected_per_s; 1 if nothing is expected."""
        return self.demand_per_s / self.expected_per_s if self.expected_per_s else 1.0


class DemandForecaster:
    """Forecast the highest rate required until a horizon.

    The owner of the history keeps it up to date. `method` names the candidate to begin with.
    """

    def __init__(self, history: LoadHistory, method: str = "") -> None:
        self.history = history
        first = next((one for one in CANDIDATES if one.name == method), CANDIDATES[0])
        self._score = Score(first, 0.0, math.nan)
        self._fitted_for: tuple[int, float] | None = None
        self._calibrated = self._chosen = -math.inf
        self._prior_weight = 1.0
        #: The peak that recurs, and the step, horizon and candidate that it is for.
        self._recurring: tuple[tuple[int, int, Candidate] | None, float] = (None, 0.0)

    @property
    def method(self) -> str:
        return self._score.candidate.name

    def forecast(
        self,
        now_s: float,
        horizon_s: float,
        risk: float,
        replica_per_s: float = 0.0,
        hold_s: float = 0.0,
    ) -> DemandForecast | None:
        """Forecast the demand until a replica ordered now serves; None before the first rates.

        The share `risk` of the one-minute windows may be missed. Replicas that serve
        `replica_per_s` each within the SLA are ordered, and held for `hold_s` after their demand
        (see `Backtest`). Whole steps of ten seconds before now that are not known yet lengthen the
        horizon.
        """
        if not 0 < risk < 1:
            raise InvalidInputError(f"risk: must be above 0 and below 1, not {risk!r}")
        if not 0 <= horizon_s < math.inf:
            raise InvalidInputError(f"horizon_s: must be at least 0 and finite, not {horizon_s!r}")
        end_s = self.history.end_s
        if end_s is None:
            return None
        # In whole steps, so that the usual lag of a second or two has no effect.
        unknown_steps = math.floor(max(0.0, now_s - end_s) / STEP_S)
        exact_steps = horizon_s / STEP_S + min(unknown_steps, _MAX_UNKNOWN_STEPS)
        steps_ahead = max(1, math.ceil(exact_steps))
        if self._is_fit_due(end_s, steps_ahead, risk):
            hold_steps = int(hold_s // STEP_S)
            self._fit(end_s, risk, Backtest(self.history, exact_steps, replica_per_s, hold_steps))
            self._fitted_for, self._calibrated = (steps_ahead, risk), end_s
        history = self.history
        rates, required_rates = history.blocks()
        point = self._score.candidate.point
        expected_per_s = float(point.values(rates, required_rates, steps_ahead)[-1])
        point_per_s = max(expected_per_s, min_forecast_per_s(history.rates.values))
        # A past that is short says little of what never comes.
        headroom = HEADROOM + self._prior_weight * (_YOUNG_HEADROOM - HEADROOM)
        cap_per_s = max(
            demand_cap_per_s(history.required_rates.values, headroom),
            (1 + headroom) * float(required_rates.max()),
        )
        margin_per_s = self._score.margin * math.sqrt(point_per_s)
        calibrated = max(0.0, min(point_per_s + margin_per_s, cap_per_s))
        prior = (1 + headroom) * float(required_rates[-_PRIOR_STEPS:].max())
        demand = max(
            calibrated + self._prior_weight * max(0.0, prior - calibrated),
            self._recurring_peak(end_s // STEP_S, steps_ahead),
            history.required_rate_per_s,
        )
        return DemandForecast(expected_per_s, demand, self.method)

    def _recurring_peak(self, step: int, steps_ahead: int) -> float:
        candidate = self._score.candidate
        if candidate.recurrence is None:
            return 0.0
        key = (step, steps_ahead, candidate)
        if self._recurring[0] != key:
            peaks = expected_peaks(jump_heights(self.history), candidate.recurrence, steps_ahead)
            self._recurring = (key, float(peaks[-1]) if peaks.size else 0.0)
        return self._recurring[1]

    def _is_fit_due(self, end_s: int, steps_ahead: int, risk: float) -> bool:
        fitted_ahead, fitted_risk = self._fitted_for or (0, risk)
        changed = steps_ahead != fitted_ahead or not 0.8 <= risk / fitted_risk <= 1.25
        return changed or end_s - self._calibrated >= _CALIBRATE_EVERY_S

    def _fit(self, end_s: int, risk: float, backtest: Backtest) -> None:
        """Measure the margin again, and choose the forecast if that is due."""
        # Measuring a share of windows takes about 1 / risk independent horizons.
        self._prior_weight = 1.0 / max(1.0, risk * backtest.steps / backtest.steps_ahead) ** 2
        current = self._score.candidate
        self._score = backtest.score(current, risk)
        if backtest.steps < _CHOOSE_AFTER_STEPS:
            return
        if math.isinf(self._score.cost_per_s) or end_s - self._chosen >= _CHOOSE_EVERY_S:
            self._chosen = end_s
            scores = [backtest.score(one, risk) for one in CANDIDATES]
            self._score = choose_cheapest(scores, current, _MIN_GAIN)
