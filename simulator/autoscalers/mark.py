"""Proportional with a forecast, as in MArk: predicted rate over what one replica carries in time.

Zhang et al., "MArk: Exploiting Cloud Services for Cost-Effective, SLO-Aware Machine Learning
Inference Serving", USENIX ATC 2019: batches as large as the SLA allows, the load predicted over the
time that an instance takes to start, instances in proportion. Choices of ours:

- The largest batch that the SLA allows is that which, behind one more of its kind, ends in time; a
  replica carries the throughput of such batches.
- MArk predicts with an LSTM, trained on days of the same service; here stands Holt's linear
  exponential smoothing of ten-second means, which needs no training.
- What MArk gives to serverless functions while predictions fail, it has to carry by the headroom on
  the predicted rate, its knob.
"""

import math
from collections import deque

import numpy as np

from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from simulator.scaling import FleetView

#: Length of the means that are smoothed.
STEP_S = 10
#: Percentile of the start times seen that is planned for.
START_TIME_PERCENTILE = 90


class HoltForecast:
    """Level and trend, each smoothed (Holt 1957).

    Parameters
    ----------
    level_weight, trend_weight : float
        Weight of the newest value, between 0 and 1.
    """

    def __init__(self, level_weight: float = 0.5, trend_weight: float = 0.1) -> None:
        if not (0 < level_weight <= 1 and 0 <= trend_weight <= 1):
            raise InvalidInputError(
                f"level_weight and trend_weight: must be 0 to 1, not {level_weight:g} "
                f"and {trend_weight:g}"
            )
        self._level_weight, self._trend_weight = level_weight, trend_weight
        self._level = math.nan
        self._trend = 0.0

    def add(self, value: float) -> None:
        """Take in the value of one step more."""
        if math.isnan(self._level):
            self._level = value
            return
        before = self._level
        expected = before + self._trend
        self._level = expected + self._level_weight * (value - expected)
        self._trend += self._trend_weight * (self._level - before - self._trend)

    def ahead(self, steps: float) -> float:
        """Give the value expected `steps` after the last one, at least 0; NaN before the first."""
        return math.nan if math.isnan(self._level) else max(0.0, self._level + steps * self._trend)


class MarkProportional:
    """Replicas in proportion to the rate predicted for when one ordered now has started.

    Parameters
    ----------
    profile : Profile
    objective : ServiceLevelObjective
    start_time_s : float
        Assumed until replicas have started.
    headroom : float
        Factor on the predicted rate.
    name : str

    Raises
    ------
    InfeasibleError
        No batch ends in time behind another one.
    """

    def __init__(
        self,
        profile: Profile,
        objective: ServiceLevelObjective,
        start_time_s: float,
        headroom: float = 1.2,
        name: str = "MArk",
    ) -> None:
        if not headroom > 0:
            raise InvalidInputError(f"headroom: must be above 0, not {headroom:g}")
        self.name = name
        self.replica_rate_per_s = replica_rate_per_s(profile, objective)
        self._start_time_s = start_time_s
        self._headroom = headroom
        self._offered: deque[float] = deque(maxlen=STEP_S)
        self._seconds = 0
        self._forecast = HoltForecast()
        self._predicted_per_s = math.nan

    @property
    def forecast_per_s(self) -> float:
        """Rate that it last sized for; NaN before it knows one."""
        return self._headroom * self._predicted_per_s

    def replicas(self, view: FleetView) -> int:
        """Give the replicas that should be ordered."""
        self._offered.append(view.offered)
        self._seconds += 1
        mean = sum(self._offered) / len(self._offered)
        if self._seconds % STEP_S == 0:
            self._forecast.add(mean)
            if view.start_times_s.size:
                self._start_time_s = float(
                    np.percentile(view.start_times_s[-50:], START_TIME_PERCENTILE)
                )
            self._predicted_per_s = self._forecast.ahead(self._start_time_s / STEP_S)
        elif self._seconds < STEP_S:
            self._predicted_per_s = mean
        return max(1, math.ceil(self.forecast_per_s / self.replica_rate_per_s - 1e-9))


def replica_rate_per_s(profile: Profile, objective: ServiceLevelObjective) -> float:
    """Give the throughput of the largest batches of which two in a row end in time.

    Raises
    ------
    InfeasibleError
        Two batches of one do not.
    """
    fitting = np.flatnonzero(2 * profile.latency_ms <= objective.response_time_ms)
    if not fitting.size:
        raise InfeasibleError(
            f"MArk: two batches of one take {2 * profile.latency_ms[0]:.4g} ms, more than the "
            f"SLA's {objective.response_time_ms:g} ms"
        )
    rates = np.arange(1, fitting.size + 1) / profile.latency_ms[fitting]
    return float(1e3 * rates.max())
