"""The demand that replicas must meet until one ordered now serves, at a chosen risk."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from sojourn.errors import InvalidInputError

FloatArray = NDArray[np.float64]

_STATE_VERSION = 1


@dataclass(frozen=True)
class DemandForecast:
    """What is to come until the horizon.

    Attributes
    ----------
    expected_per_s : float
        The point forecast: the mean rate, without noise.
    demand_per_s : float
        What the highest rate of a second until the horizon exceeds with a chance of `risk`;
        what replicas should be sized for.
    method : str
        The forecast that won.
    margin : float
        demand_per_s over expected_per_s; 1 where nothing is expected.
    """

    expected_per_s: float
    demand_per_s: float
    method: str
    margin: float


class DemandForecaster:
    """Forecasts the highest rate of a second until a horizon, from what has been offered so far.

    Parameters
    ----------
    forecast : str
        The methods to choose from: "auto" for all, else the name of one.
    """

    def __init__(self, forecast: str = "auto") -> None:
        self._rates: FloatArray = np.zeros(0)
        self._end_s = -math.inf

    def observe(self, time_s: float, rates_per_s: ArrayLike) -> None:
        """Take in the rates of the newest whole seconds, oldest first; the last ends at `time_s`.

        What is known already is ignored; seconds that nobody told of are a gap.
        """
        rates = np.asarray(rates_per_s, dtype=np.float64)
        new = (
            rates
            if math.isinf(self._end_s)
            else rates[max(0, rates.size - round(time_s - self._end_s)) :]
        )
        if time_s > self._end_s and new.size:
            self._rates = np.append(self._rates, new)[-600:]
            self._end_s = time_s

    def forecast(self, now_s: float, horizon_s: float, risk: float = 0.01) -> DemandForecast | None:
        """Forecast the demand from `now_s` to `horizon_s` later; None before the first rates."""
        if not self._rates.size:
            return None
        mean = float(self._rates[-10:].mean())
        seconds = max(1.0, horizon_s)
        demand = mean + float(-ndtri(risk / seconds)) * math.sqrt(max(mean, 1.0))
        return DemandForecast(mean, demand, "last", demand / mean if mean else 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Give all that was learned, as plain numbers, lists and tables."""
        return {
            "version": _STATE_VERSION,
            "rates": self._rates.tolist(),
            "end_s": None if math.isinf(self._end_s) else self._end_s,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave.

        Raises
        ------
        InvalidInputError
            The state is of another version, or not of this form.
        """
        if not isinstance(state, Mapping) or state.get("version") != _STATE_VERSION:
            raise InvalidInputError(f"forecast state: must be of version {_STATE_VERSION}")
        self._rates = np.asarray(state["rates"], dtype=np.float64)
        self._end_s = -math.inf if state["end_s"] is None else float(state["end_s"])
